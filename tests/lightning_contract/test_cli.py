"""What ``fl_lightning/_lightning/cli.py`` relies on in LightningCLI."""

from typing import ClassVar

import pytest
from pytorch_lightning import LightningModule
from pytorch_lightning.cli import LightningCLI


class Recorder(LightningCLI):
    """Records which stages run and with which arguments, but creates no object and runs no command."""

    def __init__(self, *args: str) -> None:
        self.stages: list[str] = []
        self.prepared: dict[str, object] = {}
        self.ran: list[str] = []
        super().__init__(
            LightningModule, subclass_mode_model=True, seed_everything_default=7, args=["fit", "--model", *args]
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {"fit": LightningCLI.subcommands()["fit"]}

    def _prepare_subcommand_parser(self, klass, subcommand, **kwargs):
        self.prepared[subcommand] = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        return self.prepared[subcommand]

    def parse_arguments(self, parser, args):
        self.config = parser.parse_args(args)
        self.stages.append("parse_arguments")

    def _parse_ckpt_path(self):
        self.stages.append("_parse_ckpt_path")

    def _set_seed(self):
        self.stages.append("_set_seed")

    def before_instantiate_classes(self):
        self.stages.append("before_instantiate_classes")

    def instantiate_classes(self):
        self.stages.append("instantiate_classes")

    def after_instantiate_classes(self):
        self.stages.append("after_instantiate_classes")

    def _run_subcommand(self, subcommand):
        self.stages.append("_run_subcommand")
        self.ran.append(subcommand)


class Module(LightningModule):
    made: ClassVar[int] = 0

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        Module.made += 1


@pytest.fixture(scope="module")
def cli() -> Recorder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fl-lightning"])
        return Recorder(f"{__name__}.Module", "--model.width", "3")


def test_the_prepared_parser_is_the_one_that_parses_the_command(cli):
    assert cli.prepared.keys() == {"fit"}, (
        "LightningCLI no longer calls _prepare_subcommand_parser once per command:"
        " ExtensibleCLI fills all parsers, and partition has none"
    )
    text = cli.prepared["fit"].dump(cli.config.fit, skip_none=False)
    assert "width: 3" in text, (
        "the parser that _prepare_subcommand_parser returns is not the one that parsed the command:"
        " ParseOnly.dump and ExtensibleCLI.instantiate_section use the wrong parser"
    )


def test_a_prepared_parser_has_the_arguments_of_the_trainers_method(cli):
    assert "ckpt_path" in cli.config.fit, (
        "_prepare_subcommand_parser no longer adds the arguments of Trainer.fit:"
        " partition refuses the config.yaml of a run, which has them"
    )


def test_the_stages_run_in_order_and_there_are_no_others(cli):
    assert cli.stages == [
        "parse_arguments",
        "_parse_ckpt_path",
        "_set_seed",
        "before_instantiate_classes",
        "instantiate_classes",
        "after_instantiate_classes",
        "_run_subcommand",
    ], (
        "LightningCLI has other stages than those that ParseOnly switches off and ExtensibleCLI overrides:"
        " a checkpoint's hyper-parameters may overwrite the configuration, compare may seed or run a command itself"
    )


def test_the_name_of_the_command_is_passed_on(cli):
    assert cli.ran == ["fit"], (
        "LightningCLI no longer passes the name of the command to _run_subcommand: ExtensibleCLI cannot run partition"
    )


def test_no_object_is_created_before_instantiate_classes(cli):
    assert Module.made == 0, (
        "LightningCLI makes the model before instantiate_classes: compare makes every model of a suite to check it"
    )
    assert cli.config.fit.seed_everything == 7, (
        "the default seed is no longer part of the parsed configuration: what compare checks differs from what it runs"
    )
