"""The commands that take the configuration of a federation: all but ``compare`` and ``report``."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from jsonargparse import Namespace

import fl_lightning.aggregation  # class names without a module resolve among imported classes
import fl_lightning.models  # noqa: F401
from fl_lightning._lightning.cli import Command, CommandParser, ExtensibleCLI
from fl_lightning._lightning.cli_names import ArgsType, LightningArgumentParser, LightningCLI
from fl_lightning._lightning.names import LightningModule, TensorBoardLogger, Trainer, rank_zero_warn
from fl_lightning._lightning.ranks import (
    end_other_ranks,
    is_rank_zero,
    keep_signal_handlers,
    let_rank_zero_report,
)
from fl_lightning.callbacks import FederatedServer, RunSummary
from fl_lightning.callbacks.run.provenance import Provenance
from fl_lightning.cli import allowed_classes, partition, predict
from fl_lightning.cli.checkpoints import (
    check_checkpoint,
    explain_failed_resume,
    find_last_checkpoint,
    last_checkpoint_of,
)
from fl_lightning.cli.commands import COMMANDS, RESUME
from fl_lightning.cli.config_files import (
    check_arguments,
    check_section_files,
    check_sections,
    config_files,
)
from fl_lightning.cli.errors import shorten_parser_error, suggest_option
from fl_lightning.cli.failures import explain_failure, is_lightnings_mistake
from fl_lightning.cli.help import ShortHelpFormatter, use_short_help
from fl_lightning.cli.save_config import SaveRunConfig
from fl_lightning.cli.signals import are_installed
from fl_lightning.cli.trial import TrialBatch
from fl_lightning.client.training import LocalTraining
from fl_lightning.core.errors import (
    MisconfigurationError,
    StorageError,
    describe_os_error,
    find_disk_error,
    misses_file_in,
)
from fl_lightning.core.federation import FederationSettings
from fl_lightning.core.folders import check_new_folder
from fl_lightning.core.limits import check_number
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.core.run_lock import RunLock
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiments.settings import flatten
from fl_lightning.experiments.yaml_file import read_yaml_file
from fl_lightning.module import FederatedModule

#: the folder for all runs, unless trainer.default_root_dir names another
RUNS = "runs"
_NOTHING_SAVED = (
    "No round is saved: make room there, or set trainer.default_root_dir to another folder, and run the command again."
)
_ALL_LOST = "Its rounds are lost: run the command again."
#: maximum number of processes per core
_PROCESSES_PER_CORE = 16


class FederatedCLI(ExtensibleCLI):
    """A LightningCLI for federations, with the sections ``model``, ``data``, ``client``, ``server`` and ``trainer``.

    The section ``federation`` is for runs on several machines; a simulation ignores it.

    A run is stored in ``runs/<names of the configs>/version_<n>``, or in the folder that it is resumed from.

    Args:
        args: the command line; by default, the one that the process was started with.
    """

    def __init__(self, args: ArgsType = None) -> None:
        self._folder: Path | None = None
        self._created: list[Path] = []
        self._trainer_arguments: dict[str, Any] = {}
        try:
            self._parse_and_run(args)
        finally:
            for folder in self._created:
                with suppress(OSError):  # it is not empty
                    folder.rmdir()

    def _parse_and_run(self, args: ArgsType) -> None:
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
        parser.add_argument("--float32_matmul_precision", type=Literal["highest", "high", "medium"] | None)
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
        if config.ckpt_path is not None:
            check_checkpoint(config.ckpt_path, self.subcommand == "fit", config.get("weights_only") is not False)
        if self.subcommand != "fit":
            config.trainer.logger = False
            if config.ckpt_path is None:
                rank_zero_warn(f"{self.subcommand} uses an untrained model: set --ckpt_path to use a trained one")
        elif config.trainer.logger in (None, True, False):
            check_new_folder(self._root, "trainer.default_root_dir")
            logger = self._default_logger()
            self._folder = Path(logger.log_dir)
            self._trainer_arguments = (
                {"default_root_dir": logger.log_dir} if config.trainer.logger is False else {"logger": logger}
            )

    def instantiate_classes(self) -> None:
        """Instantiate model, data and Trainer, and wrap the model. The command ``partition`` needs only the data."""
        if self.command_config.float32_matmul_precision is not None:
            torch.set_float32_matmul_precision(self.command_config.float32_matmul_precision)
        try:
            if self.subcommand == "partition":
                self.datamodule = self.instantiate_section("data")
                return
            super().instantiate_classes()
        except Exception as error:
            raise explain_failure(error) or error from error
        self.model = FederatedModule(self.model)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Instantiate the Trainer with the logger that determines the run's folder, or with the folder itself."""
        trainer = super().instantiate_trainer(**self._trainer_arguments, **kwargs)
        if are_installed():
            keep_signal_handlers(trainer)
        if self.subcommand == "fit":
            trainer.callbacks.append(TrialBatch())  # type: ignore[attr-defined]
            if self._given_runs:
                trainer.callbacks.append(Provenance(repeats=self._given_runs[-1]))  # type: ignore[attr-defined]
        return trainer

    def fit(self, **kwargs: Any) -> None:
        """Run ``Trainer.fit``. A run that completes no round leaves only tracebacks of clients behind."""
        run = None if self._folder is None else RunFolder(self._folder)
        before = None if run is None else _identity(run.checkpoint)
        try:
            self.trainer.fit(**kwargs)
        except BaseException as error:
            if isinstance(error, MisconfigurationError) or is_lightnings_mistake(error):
                let_rank_zero_report(self.trainer)
            reason = end_other_ranks(self.trainer, error)
            if self._folder in self._created and self.trainer.global_step == 0:
                _remove_run(RunFolder(self._folder))
            failure = None if isinstance(error, StorageError) else find_disk_error(error)
            if failure is not None:
                reason = StorageError(f"{self._folder} could not be written to: {describe_os_error(failure)}")
            saved = run is not None and run.checkpoint.is_file()
            removed = run is not None and not run.lock.exists() and misses_file_in(error, str(run))
            if isinstance(reason, StorageError) or removed:
                advice = RESUME if saved else _ALL_LOST if removed else _NOTHING_SAVED
                problem = f"{run} was removed while the run was writing to it" if removed else reason
                reason = StorageError(f"{problem}. {advice}")
            if reason is error and run is not None and _identity(run.checkpoint) == before:
                reason = explain_failed_resume(error, self.command_config.ckpt_path, run) or error
            if reason is not error:
                raise reason from error
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
            if is_rank_zero():
                RunLock(RunFolder(run)).release()  # the run takes the lock later, when the data has been read
            return TensorBoardLogger(run.parent, "", run.name, default_hp_metric=False)
        while True:
            logger = TensorBoardLogger(self._root.resolve(), self.run_name, default_hp_metric=False)
            if not is_rank_zero() or self._create(Path(logger.log_dir)):
                return logger

    def _create(self, folder: Path) -> bool:
        """Create a folder, and return True. Return False if another process has just created it."""
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            return False
        except OSError as error:
            raise StorageError(f"{folder} cannot be created: {describe_os_error(error)}") from error
        self._created = missing
        return True

    @property
    def _root(self) -> Path:
        return Path(self.command_config.trainer.default_root_dir or RUNS)

    @property
    def _config_files(self) -> list[Path]:
        return [Path(str(path)).resolve() for path in self.command_config.config or []]

    @property
    def _given_runs(self) -> list[RunFolder]:
        """The runs whose configs are given."""
        return [RunFolder(file.parent) for file in self._config_files if RunFolder(file.parent).is_run]

    @property
    def run_name(self) -> str:
        """The joined names of the configs. A run that starts from another run's config takes that run's name."""
        names = [file.parent.parent.name if RunFolder(file.parent).is_run else file.stem for file in self._config_files]
        return "-".join(names) or "run"

    def _find_checkpoint(self, ckpt_path: str | None) -> str | None:
        """Return the checkpoint's path, after replacing ``last`` with a file."""
        if ckpt_path == "last":
            if self._given_runs:
                return str(last_checkpoint_of(self._given_runs[-1]))
            set_keys = flatten(self.dump(skip_default=True))
            return str(find_last_checkpoint(self._root / self.run_name, self.dump(), set_keys))
        return ckpt_path


def _identity(checkpoint: Path) -> tuple[int, int] | None:
    """Return numbers that change when the file is replaced, or None if there is no file."""
    try:
        status = checkpoint.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


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

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Check the config files, parse the arguments, and check which classes they name."""
        if not self.has_commands:  # the parser of a command, or of a class
            return super().parse_args(args, *rest, **kwargs)
        given = sys.argv[1:] if args is None else args
        known = [name for name in self.option_names() if name not in ("help", "config", "subcommand")]
        contents = {path: read_yaml_file(path) for path in config_files(given)}
        for path, content in contents.items():
            check_sections(path, content, known)
        check_section_files(given)
        try:
            config = super().parse_args(args, *rest, **kwargs)
        except Exception as error:
            raise explain_failure(error) or error from error
        command = config.get("subcommand")
        for path, content in contents.items() if command else ():
            check_arguments(path, content, config[command])
        if command:
            _check_classes(config[command])
            _check_seed(config[command].get("seed_everything"))
            _check_processes(config[command].get("trainer"))
        return config

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        message = suggest_option(message, self.option_names())
        raise MisconfigurationError(shorten_parser_error(message)) from ex


#: the class that a section configures
_SECTIONS = {"data": FederatedDataModule, "client": LocalTraining, "server": FederatedServer, "trainer": Trainer}


def _check_classes(config: Namespace) -> None:
    """Reject functions and classes that a configuration may not name."""
    if config.get("model") is not None:
        allowed_classes.check_named_classes("model", config["model"], LightningModule)
    for section, made in _SECTIONS.items():
        allowed_classes.check_arguments(section, config.get(section), made)


def _check_seed(seed: Any) -> None:
    if isinstance(seed, int) and not isinstance(seed, bool):
        check_number("seed_everything", seed, at_least=0, at_most=2**32 - 1)


def _check_processes(trainer: Namespace | None) -> None:
    """Reject a number of processes that this machine cannot run, before Lightning tries to start them one by one."""
    devices, num_nodes = (trainer.get(name) if trainer else None for name in ("devices", "num_nodes"))
    if isinstance(devices, str) and devices.strip().isdecimal():
        devices = int(devices)
    if isinstance(devices, int):
        cores = os.cpu_count() or 1
        reason = f"each of them is a process, and this machine has {cores} cores"
        check_number("devices", devices, at_most=_PROCESSES_PER_CORE * cores, reason=reason, setting="trainer.devices")
    if isinstance(num_nodes, int):
        check_number("num_nodes", num_nodes, at_least=1, setting="trainer.num_nodes")
