"""Federations in processes where ``lightning`` is imported and ``pytorch_lightning`` is not."""

import pytest

from tests.other_lightning.process import run_program


def test_every_diagnostic_logs_its_tags(tmp_path):
    columns = run_program("fit_with_all_diagnostics", folder=tmp_path).value
    assert {"train/loss", "val_loss"} <= columns
    for prefix in ("norms", "angles", "divergence", "participation", "clients"):
        assert any(column.startswith(f"{prefix}/") for column in columns), f"{prefix} is not in {sorted(columns)}"


def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path):
    assert run_program("resumed_equals_undisturbed", folder=tmp_path).value


def test_two_processes_give_the_same_result_as_one(tmp_path):
    assert run_program("difference_between_one_and_two_processes", folder=tmp_path).value < 1e-6


@pytest.mark.parametrize("import_other_copy", [False, True])
def test_there_is_no_line_per_client(tmp_path, import_other_copy):
    lines = run_program("train", import_other_copy, folder=tmp_path).printed.splitlines()
    assert any(line.startswith("GPU available") for line in lines)
    assert sorted(lines) == sorted(set(lines))


def test_a_server_says_which_copy_it_uses_if_both_are_imported(tmp_path):
    assert run_program("train", True, folder=tmp_path).printed.splitlines()[0] == (
        "This program imports both lightning.pytorch and pytorch_lightning. fl_lightning uses lightning.pytorch:"
        " use its Trainer, or set FL_LIGHTNING_PACKAGE=pytorch_lightning"
    )


def test_objects_of_the_other_copy_are_refused_in_one_line(tmp_path):
    explanation = (
        "is made with pytorch_lightning, but fl_lightning uses lightning.pytorch, a separate copy of the same classes:"
        " import pytorch_lightning before fl_lightning, or set FL_LIGHTNING_PACKAGE=pytorch_lightning"
    )
    assert run_program("mixtures", folder=tmp_path).value == {
        "module": f"OtherNet {explanation}",
        "data module": f"OtherData {explanation}",
        "client callback": f"OtherCallback {explanation}",
        "callback": f"OtherCallback {explanation}",
        "logger": f"CSVLogger {explanation}",
    }


@pytest.mark.parametrize(
    ("variable", "package"), [("pytorch_lightning", "pytorch_lightning"), ("lightning", "lightning.pytorch")]
)
def test_the_environment_variable_decides_against_what_was_imported_first(tmp_path, variable, package):
    assert run_program("package", folder=tmp_path, FL_LIGHTNING_PACKAGE=variable).value == package
