"""The commands that take the configuration of a federation: all but ``compare`` and ``report``."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import fl_lightning.aggregation  # class names without a module resolve among imported classes
import fl_lightning.models  # noqa: F401
from fl_lightning._lightning.cli import Command, CommandParser, ExtensibleCLI
from fl_lightning._lightning.cli_names import ArgsType, LightningArgumentParser, LightningCLI
from fl_lightning._lightning.names import LightningModule, TensorBoardLogger, Trainer, rank_zero_warn
from fl_lightning.callbacks import FederatedServer, RunSummary
from fl_lightning.cli import partition, predict
from fl_lightning.cli.checkpoints import check_checkpoint, find_last_checkpoint, last_checkpoint_of
from fl_lightning.cli.commands import COMMANDS
from fl_lightning.cli.errors import shorten_parser_error, suggest_option
from fl_lightning.cli.help import ShortHelpFormatter, use_short_help
from fl_lightning.cli.save_config import SaveRunConfig
from fl_lightning.client.training import LocalTraining
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.federation import FederationSettings
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiments.settings import flatten
from fl_lightning.module import FederatedModule

#: the folder for all runs, unless trainer.default_root_dir names another
RUNS = "runs"


class FederatedCLI(ExtensibleCLI):
    """A LightningCLI for federations, with the sections ``model``, ``data``, ``client``, ``server`` and ``trainer``.

    The section ``federation`` is for runs on several machines; a simulation ignores it.

    A run is stored in ``runs/<names of the configs>/version_<n>``, or in the folder that it is resumed from.

    Args:
        args: the command line; by default that of the process.
    """

    def __init__(self, args: ArgsType = None) -> None:
        self._folder: Path | None = None
        self._trainer_arguments: dict[str, Any] = {}
        super().__init__(
            args=args,
            model_class=LightningModule,
            datamodule_class=FederatedDataModule,
            subclass_mode_model=True,
            auto_configure_optimizers=False,
            save_config_callback=SaveRunConfig,
            seed_everything_default=0,
            trainer_defaults={"callbacks": [RunSummary()]},
            parser_class=_Parser,
            parser_kwargs={
                "prog": "fl-lightning",
                "formatter_class": ShortHelpFormatter,
                **{name: {"description": COMMANDS[name]} for name in self.subcommands()},
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the Trainer's commands, and which of their arguments are not options."""
        commands = LightningCLI.subcommands()
        return commands | {"predict": commands["predict"] | {"return_predictions"}}

    def commands(self) -> Mapping[str, Command]:
        """Return the commands that the Trainer does not have."""
        return {"partition": Command(COMMANDS["partition"], configured_like="fit")}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the sections in the order in which a config has them."""
        parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FederatedDataModule, "data")
        parser.add_class_arguments(LocalTraining, "client")
        parser.add_lightning_class_args(FederatedServer, "server")
        parser.link_arguments("client", "server.client", apply_on="instantiate")
        parser.add_class_arguments(FederationSettings, "federation")
        parser.add_lightning_class_args(Trainer, "trainer")
        parser.set_defaults({"trainer.enable_model_summary": False})

    def add_arguments_to_command(self, command: str, parser: LightningArgumentParser) -> None:
        """Add ``--output``, and make the help of the command short."""
        if command == "partition":
            parser.add_argument("--output", type=str | None, help=partition.OUTPUT_HELP)
        elif command == "predict":
            parser.add_argument("--output", type=str, default=predict.DEFAULT_OUTPUT, help=predict.OUTPUT_HELP)
        use_short_help(parser, command)

    def before_instantiate_classes(self) -> None:
        """Check the options, find the checkpoint, and choose the folder of the run."""
        config = self.command_config
        if self.subcommand == "partition":
            partition.check_partition_options(config.output)
            return
        if self.subcommand == "predict":
            predict.check_predict_options(config.output)
        config.ckpt_path = self._find_checkpoint(config.ckpt_path)
        if self.subcommand != "fit":
            config.trainer.logger = False
            if config.ckpt_path is None:
                rank_zero_warn(f"{self.subcommand} uses an untrained model: set --ckpt_path to use that of a run")
        elif config.trainer.logger in (None, True, False):
            logger = self._default_logger()
            self._folder = Path(logger.log_dir)
            self._trainer_arguments = (
                {"default_root_dir": logger.log_dir} if config.trainer.logger is False else {"logger": logger}
            )

    def instantiate_classes(self) -> None:
        """Instantiate model, data and Trainer, and wrap the model. The command ``partition`` needs only the data."""
        if self.subcommand == "partition":
            self.datamodule = self.instantiate_section("data")
            return
        super().instantiate_classes()
        self.model = FederatedModule(self.model)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Instantiate the Trainer with the logger that determines the run's folder, or with the folder itself."""
        return super().instantiate_trainer(**self._trainer_arguments, **kwargs)

    def fit(self, **kwargs: Any) -> None:
        """Run ``Trainer.fit``. A run that ends before its first round leaves only tracebacks of clients behind."""
        try:
            self.trainer.fit(**kwargs)
        except BaseException:
            if self._folder is not None and kwargs.get("ckpt_path") is None and self.trainer.global_step == 0:
                _remove_run(RunFolder(self._folder))
            raise

    def partition(self) -> None:
        """Show which client owns which data."""
        partition.show_partition(self.datamodule, self.command_config.output)

    def predict(self, *, datamodule: FederatedDataModule, **kwargs: Any) -> None:
        """Write the predictions of the served model to a file."""
        predict.write_predictions(self.trainer, datamodule, self.command_config.output, **kwargs)

    def _default_logger(self) -> TensorBoardLogger:
        """Log into a new folder, or into the folder of the run that is resumed.

        Paths are absolute: a ModelCheckpoint that is resumed from another folder would not recognise its files.
        """
        config = self.command_config
        if config.ckpt_path and RunFolder.of_checkpoint(Path(config.ckpt_path)).is_run:
            run = RunFolder.of_checkpoint(Path(config.ckpt_path)).path
            return TensorBoardLogger(run.parent, "", run.name, default_hp_metric=False)
        return TensorBoardLogger(self._root.resolve(), self.run_name, default_hp_metric=False)

    @property
    def _root(self) -> Path:
        return Path(self.command_config.trainer.default_root_dir or RUNS)

    @property
    def _config_files(self) -> list[Path]:
        return [Path(str(path)).resolve() for path in self.command_config.config or []]

    @property
    def run_name(self) -> str:
        """The joined names of the configs. A run that starts from another run's config takes that run's name."""
        names = [file.parent.parent.name if RunFolder(file.parent).is_run else file.stem for file in self._config_files]
        return "-".join(names) or "run"

    def _find_checkpoint(self, ckpt_path: str | None) -> str | None:
        """Check ``--ckpt_path``, and turn ``last`` into a file."""
        if ckpt_path == "last":
            given = [RunFolder(file.parent) for file in self._config_files if RunFolder(file.parent).is_run]
            if given:
                return str(last_checkpoint_of(given[-1]))
            set_keys = flatten(self.dump(skip_default=True))
            return str(find_last_checkpoint(self._root / self.run_name, self.dump(), set_keys))
        if ckpt_path is not None:
            check_checkpoint(ckpt_path)
        return ckpt_path


def _remove_run(folder: RunFolder) -> None:
    """Remove the folder of a run, but keep the tracebacks of its clients."""
    for path in folder.path.glob("*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path != folder.client_errors:
            path.unlink(missing_ok=True)
    if not folder.client_errors.exists():
        shutil.rmtree(folder.path, ignore_errors=True)


class _Parser(CommandParser):
    """A parser that reports a user's mistake in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        message = suggest_option(message, self.option_names())
        raise MisconfigurationError(shorten_parser_error(message)) from ex
