import pytest

from fl_lightning._lightning import package
from fl_lightning.cli.errors import shorten_parser_error, suggest_option
from tests.runs import fl_lightning, write_config


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("a\n  b", "a b"),
        (
            "Parser key \"client.epochs\": Expected a <class 'int'>. Got value: abc",
            "client.epochs: abc is not of type int",
        ),
        (
            'Parser key "data.partition": Does not validate against any of the Union subtypes\n'
            "Subtypes: [<class 'fl_lightning.data.partition.Partition'>, <class 'NoneType'>]\nErrors:\n"
            "  - Parser key \"classes\": Expected a <class 'int'>. Got value: two\n"
            "  - Expected a <class 'NoneType'>\nGiven value type: <class 'str'>",
            "data.partition.classes: two is not of type int",
        ),
        (
            'Parser key "data.source":\n  Does not validate against any of the Union subtypes\n'
            "  Subtypes: [<class 'x.LightningDataModule'>, Sequence[Dataset]]\n"
            "  Errors:\n    - Option 'root' is not accepted\n"
            "    - Import path fl_lightning.data.Digits does not correspond to a subclass of Dataset\n"
            "  Given value type: <class 'jsonargparse._util.NestedArg'>\n"
            "  Given value: NestedArg(key='root', val='/nowhere')",
            "data.source: Option 'root' is not accepted",
        ),
        (
            "the following arguments are required: fit.data.source, fit.model",
            "required, but not set: data.source, model: give a config that sets them, --config FILE",
        ),
    ],
)
def test_messages_of_the_parser_are_shortened(message, expected):
    assert shorten_parser_error(message) == expected


def test_a_class_of_the_other_lightning_is_reported_with_what_to_write_instead(monkeypatch):
    monkeypatch.setattr(package, "PACKAGE", "lightning.pytorch")
    message = (
        'Parser key "trainer.callbacks":\n  Does not validate against any of the Union subtypes\n'
        "  Subtypes: [list[lightning.pytorch.callbacks.callback.Callback], <class 'NoneType'>]\n  Errors:\n"
        "    - Import path pytorch_lightning.callbacks.EarlyStopping does not correspond to a subclass of Callback\n"
        "    - Expected a <class 'NoneType'>\n  Given value type: <class 'list'>"
    )
    assert shorten_parser_error(message) == (
        "trainer.callbacks: pytorch_lightning.callbacks.EarlyStopping is made with pytorch_lightning, but this run uses"
        " lightning.pytorch, a separate copy of the same classes: write lightning.pytorch.callbacks.EarlyStopping"
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--trainer.callbacks+=lightning.pytorch.callbacks.Timer"],
            "trainer.callbacks: lightning.pytorch.callbacks.Timer is made with lightning.pytorch, but this run uses"
            " pytorch_lightning, a separate copy of the same classes: write pytorch_lightning.callbacks.Timer",
        ),
        (
            ["--data.source", "other_data.Data"],
            "data.source: other_data.Data is made with lightning.pytorch, but this run uses pytorch_lightning, a"
            " separate copy of the same classes: let other_data import pytorch_lightning instead of lightning.pytorch",
        ),
        (
            ["--trainer.callbacks+=torch.nn.Linear"],
            "trainer.callbacks: torch.nn.Linear is not a subclass of Callback: use a class that is one",
        ),
    ],
    ids=["of Lightning itself", "of the user", "of neither"],
)
def test_a_class_that_does_not_fit_is_named_in_one_line(tmp_path, arguments, problem):
    (tmp_path / "other_data.py").write_text("import lightning\n\nclass Data(lightning.LightningDataModule): ...\n")
    process = fl_lightning("fit", "--config", write_config(tmp_path / "run.yaml"), *arguments, folder=tmp_path)
    assert process.returncode == 2
    assert process.stderr.splitlines()[-1] == f"error: {problem}"


NO_NAME = (
    "a key is not a name of at most 60 letters, digits and _ . + -: correct or remove it"
    " (it is not shown here, because the file may hold secrets)"
)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{client: {'pass word: 3': 1}}", NO_NAME),
        ("{client: {'pass#word': 1}}", NO_NAME),
        ("{client: {\"pass'word'\": 1}}", NO_NAME),
        ("{client: {12345: 1}}", NO_NAME),
        ("{client: {'': 1}}", NO_NAME),
        ("{data: {source: {class_path: tests.toys.Blobs, init_args: {'pass#word': 1}}}}", f"data.source: {NO_NAME}"),
        (
            '{server: {aggregator: {class_path: FedAdp, init_args: {"pass\'wo rd": 1}}}}',
            f"server.aggregator: {NO_NAME}",
        ),
        ("{model: {class_path: tests.toys.Net, init_args: {'pass#word': 1}}}", f"model: {NO_NAME}"),
        ("{server: {aggregator: {class_path: FedAdp, init_args: {pass word: 1}}}}", f"server.aggregator: {NO_NAME}"),
        (
            "{server: {aggregator: {class_path: FedAdp, init_args: {pass_word: 1}}}}",
            "server.aggregator: Option 'pass_word' is not accepted",
        ),
    ],
)
def test_a_key_that_is_no_name_is_not_repeated_and_the_message_says_so(run, tmp_path, config, problem):
    (tmp_path / "odd.yaml").write_text(config)
    code, _, err = run("fit", "--config", "run.yaml", "--config", "odd.yaml")
    assert (code, err) == (2, f"error: {problem}\n")


def test_arguments_beside_the_class_instead_of_under_init_args_are_reported_with_the_fix(run, tmp_path):
    (tmp_path / "odd.yaml").write_text("{server: {aggregator: {class_path: FedAdp, alpha: 1}}}")
    code, _, err = run("fit", "--config", "run.yaml", "--config", "odd.yaml")
    fix = "no class is named: give a mapping with class_path and init_args and no other keys"
    assert (code, err) == (2, f"error: server.aggregator: {fix}\n")


@pytest.mark.parametrize(
    ("message", "suggestion"),
    [
        ("unrecognized arguments: --client.clok run", ": did you mean client.clock?"),
        ("unrecognized arguments: --client.max_epochs 3", ": did you mean client.min_epochs or client.epochs?"),
        (
            "Subcommand 'fit' does not accept option 'clients.epochs'",
            ": did you mean client.epochs or client.min_epochs?",
        ),
        ("Option 'bta' is not accepted", ": did you mean beta?"),
        ("unrecognized arguments: --nonsense", ""),
        ('Parser key "client.clok": anything else', ""),
    ],
)
def test_an_unknown_option_is_reported_with_known_ones_that_look_alike(message, suggestion):
    options = ["beta", "gamma", "client.clock", "client.epochs", "client.min_epochs"]
    assert suggest_option(message, options) == message + suggestion


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["--client.clok", "run"], "client.clock"),
        (["--config", "typo.yaml"], "client.epochs"),
        (["--server.aggregator", "FedNNNN", "--server.aggregator.bta", 1], "beta"),
    ],
    ids=["on the command line", "in a config", "of a class"],
)
def test_the_parser_of_a_command_knows_the_options_to_suggest(run, tmp_path, arguments, suggestion):
    (tmp_path / "typo.yaml").write_text("client: {epocs: 3}")
    code, _, err = run("fit", "--config", "run.yaml", *arguments)
    assert code == 2
    assert f": did you mean {suggestion}" in err
