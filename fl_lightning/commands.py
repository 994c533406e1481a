"""The commands that take a federation's configuration: a LightningCLI whose run is a federation."""

import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.rank_zero import rank_zero_warn

import fl_lightning.aggregation
import fl_lightning.models  # noqa: F401  short class names resolve among what is imported
from fl_lightning.callbacks import FederatedServer, RunSummary
from fl_lightning.complaints import explain
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.ownership import Ownership
from fl_lightning.local import LocalTraining
from fl_lightning.module import FederatedModule
from fl_lightning.partition_table import partition_table

RUNS = "runs"
_PARTITION = "Shows which client owns how many samples of which class, and trains nothing."


class FederatedCLI(LightningCLI):
    """``fl-lightning fit|validate|test|partition``: sections model, data, client, server, trainer.

    Args:
        args: by default those of the command line.
        other_commands: names and descriptions of commands that are run elsewhere, for the help.
    """

    def __init__(self, args: ArgsType = None, other_commands: Mapping[str, str] | None = None) -> None:
        self._other_commands = other_commands or {}
        self._asked_for = next(iter(sys.argv[1:] if args is None else args), None)
        super().__init__(
            LightningModule,
            FederatedDataModule,
            subclass_mode_model=True,
            auto_configure_optimizers=False,
            save_config_callback=SaveRunConfig,
            seed_everything_default=0,
            trainer_defaults={"enable_model_summary": False, "callbacks": [RunSummary()]},
            parser_class=_Parser,
            parser_kwargs={"description": "Federated learning on PyTorch Lightning."},
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

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """Adds those that are not a Trainer's."""
        super()._add_subcommands(parser, **kwargs)
        partition = self._prepare_subcommand_parser(Trainer, "partition", description=_PARTITION)
        partition.add_argument("--output", type=str | None, help="Draws it too, into this file: .png, .pdf or .svg.")
        self._subcommand_parsers["partition"] = partition
        subcommands = parser._subcommands_action
        assert subcommands is not None
        subcommands.add_subcommand("partition", partition, help=_PARTITION)
        for name, description in self._other_commands.items():
            subcommands.add_subcommand(name, self.parser_class(description=description), help=description)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Prepares only the one that is asked for: each takes a fifth of a second."""
        if self._asked_for != subcommand and self._asked_for in (*self.subcommands(), "partition"):
            return self.init_parser(**kwargs)
        # The configuration of a partition is that of fit, a run's own config.yaml included.
        return super()._prepare_subcommand_parser(klass, "fit" if subcommand == "partition" else subcommand, **kwargs)

    def _parse_ckpt_path(self) -> None:
        """A checkpoint's hyper-parameters do not beat the configuration; a model that does not fit is refused."""

    def before_instantiate_classes(self) -> None:
        """Decides where the run is kept: ``runs/<names of the configs>/version_<n>``, or where it was resumed from."""
        self._logger: TensorBoardLogger | None = None
        config = self.config[self.subcommand]
        if self.subcommand == "partition":
            _check_output(config.output)
            return
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
        """Wraps the model. To show a partition the data is enough."""
        if self.subcommand == "partition":
            data = Namespace(data=self.config.partition.data)
            self.datamodule = self._parser("partition").instantiate_classes(data).data
            return
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

    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand == "partition":
            show_partition(self.datamodule, self.config.partition.output)
        else:
            super()._run_subcommand(subcommand)

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


def show_partition(data: FederatedDataModule, output: str | None = None) -> None:
    """Prints which client owns what, and draws it into the file ``output``."""
    data.prepare_data()
    data.setup("fit")
    ownership = Ownership.of(data)
    print(partition_table(ownership, shutil.get_terminal_size((100, 24)).columns), flush=True)
    if output is not None:
        from fl_lightning.partition_picture import partition_figure

        partition_figure(ownership).savefig(output, dpi=150)
        print(f"Drawn in {output}", flush=True)


def _check_output(output: str | None) -> None:
    """Before the data is read."""
    if output is None:
        return
    if Path(output).suffix not in (".png", ".pdf", ".svg"):
        raise MisconfigurationException(f"output={output}: set --output to a file that ends in .png, .pdf or .svg")
    if not Path(output).resolve().parent.is_dir():
        raise MisconfigurationException(f"output={output}: there is no folder {Path(output).parent}, make it first")


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
