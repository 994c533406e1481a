import pytest

from fl_lightning.cli.main import main
from tests.experiments.fakes import config, list_metrics, write_run


@pytest.fixture
def report(tmp_path, capsys, monkeypatch):
    """Run ``fl-lightning report`` in a folder of runs, without drawing; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_lightning.reports.sections.figure", lambda title, *_: f"<figure>{title}</figure>")

    def call(*arguments):
        code = 0
        try:
            main(["report", *arguments])
        except SystemExit as exit:
            code = exit.code or 0
        return code, *capsys.readouterr()

    return call


def test_one_page_shows_all_runs_of_a_folder(report, tmp_path):
    for seed in (1, 2):
        for name in ("FedAvg", "FedNNNN"):
            write_run(tmp_path / "runs" / name / f"seed_{seed}", [0.5, 0.6], settings=config(seed, 2, name))
    code, out, err = report("runs", "--output", "report.html")
    assert code == 0, err
    assert out == "4 runs, 2 curves: report.html\n"
    assert "<td>FedNNNN</td><td>60.00 ± 0.00 %</td>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("logged", "shown"),
    [
        (["val/macro_f1", "val/accuracy"], "val/accuracy"),
        (["val_loss", "val_acc"], "val_acc"),
        (["val_loss"], "val_loss"),
        (["train/loss"], "train/loss"),
    ],
)
def test_the_default_metric_is_the_validation_accuracy_or_the_closest_to_it(report, tmp_path, logged, shown):
    first, *more = logged
    write_run(tmp_path / "run", [0.5], metric=first, **{tag.replace("/", "__"): [0.5] for tag in more})
    assert report("run")[0] == 0
    assert f'<div class="grid"><figure>{shown}</figure>' in (tmp_path / "report.html").read_text()


def test_another_metric_can_be_chosen(report, tmp_path):
    write_run(tmp_path / "run", [0.5], val__macro_f1=[0.25])
    report("run", "--metric", "val/macro_f1")
    assert "<td>25.00 %</td>" in (tmp_path / "report.html").read_text()


def test_folders_that_are_not_runs_are_noted(report, tmp_path):
    write_run(tmp_path / "runs" / "good", [0.5])
    (tmp_path / "runs" / "strange").mkdir()
    (tmp_path / "runs" / "strange" / "config.yaml").write_text("a: 1")
    code, out, _ = report("runs")
    assert code == 0
    assert "Note: runs/strange/config.yaml is not a config of fl-lightning fit: leave that folder out\n" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["empty"], "empty is empty: give a folder that fl-lightning fit or compare wrote"),
        (["run", "--metric", "val/f1"], "metric=val/f1, but no run logged it: set --metric to one of val/accuracy"),
        (["run", "--output", "empty"], "output=empty is a folder: set --output to a file in it"),
    ],
)
def test_a_mistake_is_reported_in_one_line(report, tmp_path, arguments, message):
    write_run(tmp_path / "run", [0.5])
    (tmp_path / "empty").mkdir()
    code, _, err = report(*arguments)
    assert code == 2
    assert err == f"error: {message}\n"
    assert not (tmp_path / "report.html").exists()


def test_a_page_is_not_written_into_a_missing_folder(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path), "--output", str(tmp_path / "nowhere" / "report.html")])
    assert f"the folder {tmp_path / 'nowhere'} does not exist, create it first" in capsys.readouterr().err


def test_the_default_metric_is_one_that_the_module_logged_in_validation(report, tmp_path):
    write_run(tmp_path / "run", [0.5], metric="fedfoo/accuracy", my_score=[0.25])
    list_metrics(tmp_path / "run", ["my_score", "train/loss"])
    assert report("run")[0] == 0
    assert "<td>0.25</td>" in (tmp_path / "report.html").read_text()
    assert "set --metric to one of my_score\n" in report("run", "--metric", "nothing")[2]
