import sys

import pytest

from fl_lightning.cli.named_classes import import_named_classes, named_modules

#: 40 lists, each of which contains the one before twice
DOUBLING = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 41))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a file into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    return write


@pytest.mark.parametrize(
    "args",
    [
        ["--model", "my.nets.Net"],
        ["--model=my.nets.Net"],
        ["--model.class_path", "my.nets.Net"],
        ["--model.class_path=my.nets.lower_case"],
        ["--model", '{"class_path": "my.nets.Net", "init_args": {"width": 3}}'],
        ["--data.source=my.nets.Data"],
        ["--trainer.callbacks+=my.nets.Watch"],
        ["--trainer.callbacks+", "my.nets.Watch"],
        ["--trainer.callbacks", "[{class_path: my.nets.Watch}]"],
        ["--config", "{model: {class_path: my.nets.Net}}"],
    ],
)
def test_options_name_classes(args):
    assert named_modules(["fit", *args, "--trainer.max_epochs", "3"]) == ["my.nets"]


@pytest.mark.parametrize("args", [["--config", "a.yaml"], ["--config=a.yaml"], ["-c", "a.yaml"], ["-c=a.yaml"]])
@pytest.mark.parametrize(
    "text", ["model: {class_path: my.nets.Net}", "model: my.nets.Net", "client: {callbacks: [my.nets.Watch]}"]
)
def test_configs_name_classes(write, args, text):
    write("a.yaml", text)
    assert named_modules(["fit", *args]) == ["my.nets"]


def test_a_config_needs_no_suffix(write):
    write("config", "model: my.nets.Net")
    assert named_modules(["fit", "--config", "config"]) == ["my.nets"]


def test_a_config_names_another_file_relative_to_itself(write):
    write("folder/run.yaml", "model: net.yaml")
    write("folder/net.yaml", "class_path: my.nets.Net")
    assert named_modules(["fit", "--config", "folder/run.yaml"]) == ["my.nets"]


def test_a_suite_names_classes_in_its_parts_and_in_their_files(write):
    write("suite.yaml", "{base: [base.yaml], rows: {A: [{data: {source: {class_path: b.Data}}}]}}")
    write("base.yaml", "model: {class_path: a.Net}")
    assert named_modules(["compare", "suite.yaml", "--jobs", "2"]) == ["a", "b"]


def test_the_models_own_class_comes_first_then_its_parts_then_all_others(write):
    write("a.yaml", "{data: {source: {class_path: d.Data}}, model: {init_args: {net: {class_path: p.P}}}}")
    args = ["fit", "--client.callbacks", "c.Watch", "--config", "a.yaml", "--model", "m.Net"]
    assert named_modules(args)[:2] == ["m", "p"]


def test_a_later_model_comes_before_the_one_that_it_replaces(write):
    write("a.yaml", "model: {class_path: first.Net}")
    write("b.yaml", "model: {class_path: second.Net}")
    assert named_modules(["fit", "--config", "a.yaml", "--config", "b.yaml"]) == ["second", "first"]
    assert named_modules(["fit", "--config", "a.yaml", "--model=second.Net"]) == ["second", "first"]


@pytest.mark.parametrize(
    "args",
    [
        ["--output", "partition.png"],
        ["--ckpt_path", "last.ckpt"],
        ["--trainer.default_root_dir", "runs.old"],
        ["--model", "Net"],
        ["--model", "fl_lightning.models.Classifier"],
        ["--client.epochs", "1.5"],
        ["--config", "nowhere.yaml"],
        ["--config"],
        ["--config="],
        ["--model", "{class_path: [}"],
    ],
)
def test_other_arguments_name_no_class_to_import(write, args):
    assert named_modules(["fit", *args]) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("&a {model: &b {class_path: my.Net, again: *a, and: *b}, list: &c [*c, *a]}", ["my"]),
        (DOUBLING + "model: my.Net", ["my"]),
        ("model: a.yaml\nbase: [a.yaml, ./a.yaml]", []),
        ("model: {class_path: 3}", []),
        ("model: {class_path: }", []),
        ("model: [", []),
        ("", []),
        ("[" * 500, []),
    ],
    ids=["recursive aliases", "doubling aliases", "itself", "number", "nothing", "invalid", "empty", "deep"],
)
def test_configs_that_are_recursive_or_wrong_end_nothing(write, text, expected):
    write("a.yaml", text)
    assert named_modules(["fit", "--config", "a.yaml"]) == expected


def test_a_config_that_is_not_text_ends_nothing(write, tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00model")
    assert named_modules(["fit", "--config", "a.yaml", "--config", str(tmp_path)]) == []


@pytest.fixture
def without_lightning(monkeypatch, tmp_path):
    """Pretend that no Lightning is imported yet, and find modules in an empty folder."""
    for name in ("pytorch_lightning", "lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_modules_are_imported_until_one_imports_a_lightning(without_lightning, write, monkeypatch):
    write("broken_nets.py", "raise RuntimeError")
    write("chosen_nets.py", "import sys; sys.modules['lightning'] = sys")
    write("late_data.py", "")
    import_named_classes(["--model", "broken_nets.A", "--model.net", "chosen_nets.B", "--data.source", "late_data.C"])
    assert "chosen_nets" in sys.modules
    assert not {"broken_nets", "late_data"} & sys.modules.keys()
    monkeypatch.delitem(sys.modules, "chosen_nets")


def test_nothing_is_imported_if_the_program_has_imported_a_lightning(write, monkeypatch):
    write("unneeded_nets.py", "")
    monkeypatch.syspath_prepend(".")
    import_named_classes(["--model", "unneeded_nets.A"])
    assert "unneeded_nets" not in sys.modules
