"""The ``fl-lightning`` command: a LightningCLI whose run is a federation."""

import logging
import os
import re
import shutil
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException, SIGTERMException
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

import fl_lightning.aggregation
import fl_lightning.models  # noqa: F401  short class names resolve among what is imported
from fl_lightning.callbacks import FederatedServer, RunSummary
from fl_lightning.complaints import explain
from fl_lightning.data import FederatedDataModule
from fl_lightning.local import LocalTraining
from fl_lightning.module import FederatedModule

RUNS = "runs"


class FederatedCLI(LightningCLI):
    """``fl-lightning fit|validate|test``: sections model, data, client, server, trainer."""

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            LightningModule,
            FederatedDataModule,
            subclass_mode_model=True,
            auto_configure_optimizers=False,
            save_config_callback=SaveRunConfig,
            seed_everything_default=0,
            trainer_defaults={"enable_model_summary": False, "callbacks": [RunSummary()]},
            parser_class=_Parser,
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the sections ``client`` and ``server``."""
        parser.add_class_arguments(LocalTraining, "client")
        parser.add_lightning_class_args(FederatedServer, "server")
        parser.link_arguments("client", "server.client", apply_on="instantiate")

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Those of LightningCLI that make sense for a federation."""
        commands = LightningCLI.subcommands()
        return {name: commands[name] for name in ("fit", "validate", "test")}

    def _parse_ckpt_path(self) -> None:
        """A checkpoint's hyper-parameters do not beat the configuration; a model that does not fit is refused."""

    def before_instantiate_classes(self) -> None:
        """Decides where the run is kept: ``runs/<names of the configs>/version_<n>``, or where it was resumed from."""
        self._logger: TensorBoardLogger | None = None
        config = self.config[self.subcommand]
        config.ckpt_path = self._resolve(config.ckpt_path)
        if self.subcommand != "fit":
            config.trainer.logger = False
            if config.ckpt_path is None:
                rank_zero_warn(f"{self.subcommand} evaluates the model as it is made, untrained: give --ckpt_path")
            return
        if config.trainer.logger in (None, True):
            # Absolute paths: from another folder, a resumed ModelCheckpoint would not know its own files again.
            run = Path(config.ckpt_path).resolve().parent.parent if config.ckpt_path else None
            if run is not None and (run / SaveRunConfig.FILE).is_file():
                self._logger = TensorBoardLogger(run.parent, "", run.name, default_hp_metric=False)
            else:
                folder = Path(config.trainer.default_root_dir or RUNS).resolve()
                self._logger = TensorBoardLogger(folder, self._name(), default_hp_metric=False)

    def instantiate_classes(self) -> None:
        """Wraps the model."""
        super().instantiate_classes()
        self.model = FederatedModule(self.model)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Puts the logger in."""
        if self._logger is not None:
            kwargs["logger"] = self._logger
        return super().instantiate_trainer(**kwargs)

    def fit(self, **kwargs: Any) -> None:
        """Runs ``Trainer.fit``; a run that ends before its first round leaves no folder behind."""
        try:
            self.trainer.fit(**kwargs)
        except BaseException:
            if self._logger is not None and kwargs.get("ckpt_path") is None and self.trainer.global_step == 0:
                shutil.rmtree(self._logger.log_dir, ignore_errors=True)
            raise

    def _configs(self) -> list[Path]:
        return [Path(str(path)).resolve() for path in self.config[self.subcommand].config or []]

    def _name(self) -> str:
        """Of the run: the names of its configs; a run that starts from another run's config has that run's name."""
        names = [path.parent.parent.name if _is_run(path.parent) else path.stem for path in self._configs()]
        return "-".join(names) or "run"

    def _resolve(self, ckpt_path: str | None) -> str | None:
        """``last`` is that of the run whose config is given, or else of the newest run of this name."""
        if ckpt_path is None or "://" in ckpt_path or ckpt_path == "hpc":
            return ckpt_path
        if ckpt_path != "last":
            if not Path(ckpt_path).is_file():
                raise MisconfigurationException(f"ckpt_path={ckpt_path}: there is no such file")
            if not zipfile.is_zipfile(ckpt_path):
                raise MisconfigurationException(f"ckpt_path={ckpt_path} is no checkpoint, or was cut off: use another")
            return ckpt_path
        folder = Path(self.config[self.subcommand].trainer.default_root_dir or RUNS, self._name())
        own = [path.parent for path in self._configs() if _is_run(path.parent)]
        runs = own or sorted(folder.glob("*"), key=lambda run: run.stat().st_mtime)
        found = [run / "checkpoints" / "last.ckpt" for run in runs]
        found = [path for path in found if path.is_file()]
        if not found:
            where = own[-1] if own else folder
            raise MisconfigurationException(
                f"ckpt_path=last, but {where} holds no run with a checkpoint: leave --ckpt_path out to start one"
            )
        return str(found[-1])


def _is_run(folder: Path) -> bool:
    return (folder / SaveRunConfig.FILE).is_file() and (folder / "checkpoints").is_dir()


class SaveRunConfig(SaveConfigCallback):
    """Saves the configuration beside the logs of a fit. A folder that holds a run is only ever continued."""

    FILE = "config.yaml"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the model is set up."""
        log_dir = trainer.log_dir
        if stage != "fit" or log_dir is None or not trainer.loggers:
            return
        folder = Path(log_dir).resolve()
        taken = (folder / self.FILE).is_file()
        resumed = self.config.ckpt_path is not None and folder in Path(self.config.ckpt_path).resolve().parents
        if taken and not resumed:
            raise MisconfigurationException(
                f"{log_dir} already holds a run: choose another folder for the logger, or continue it with"
                f" --ckpt_path {Path(log_dir) / 'checkpoints' / 'last.ckpt'}"
            )
        self.config = self.config.clone()
        self.config.ckpt_path = None  # a rerun of this config starts anew
        if not taken:
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first round: a resumed run that is configured otherwise says so, in a file of its own."""
        folder = trainer.log_dir  # asked for on every rank: rank zero broadcasts it
        if trainer.current_epoch == 0 or folder is None or not trainer.is_global_zero:
            return
        first = Path(folder, self.FILE)
        config = self.parser.dump(self.config, skip_none=False)
        if first.is_file() and yaml.safe_load(first.read_text()) != yaml.safe_load(config):
            changed = first.with_name(f"config_from_round_{trainer.current_epoch + 1}.yaml")
            changed.write_text(config)
            print(f"Configured otherwise than the rounds before: see {changed.name} beside {first}", flush=True)


class _Parser(LightningArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise MisconfigurationException(explain(message)) from ex


def main(args: ArgsType = None) -> None:
    """The console script. A user's mistake gets one line; exit codes: 2 a mistake, 130 Ctrl-C, 143 SIGTERM."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # console scripts do not see the user's own modules otherwise
    _keep_quiet()
    try:
        FederatedCLI(args)
    except SIGTERMException:
        _say_how_to_resume("Terminated")
        sys.exit(143)
    except SystemExit as exit:
        if isinstance(exit.__context__, KeyboardInterrupt):
            _say_how_to_resume("Interrupted")
            sys.exit(130)
        raise
    except Exception as error:
        mistake = _mistake_behind(error)
        if mistake is None:
            raise
        print(f"error: {explain(str(mistake))}", file=sys.stderr)
        sys.exit(2)


def _say_how_to_resume(what: str) -> None:
    print(f"{what}. The rounds that ended are kept: the same command with --ckpt_path last goes on.", file=sys.stderr)


def _mistake_behind(error: BaseException | None) -> BaseException | None:
    """A user's mistake may come wrapped by the parser."""
    while error is not None and not isinstance(error, MisconfigurationException):
        error = error.__cause__
    return error


def _keep_quiet() -> None:
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.* is deprecated")
    warnings.filterwarnings("ignore", ".*does not have many workers")
    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
    warnings.filterwarnings("ignore", r".*add the following callbacks: \['LastRound'\]")
    rank_zero = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    rank_zero.addFilter(lambda record: not re.match("💡 Tip|TPU available|`Trainer.fit` stopped", record.getMessage()))
    logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.WARNING)


if __name__ == "__main__":
    main()
