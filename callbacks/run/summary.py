"""What a run prints about itself in the terminal."""

from fl_lightning._lightning.names import Callback, LightningModule, Trainer, rank_zero_only
from fl_lightning._lightning.server_trainer import evaluated_metrics
from fl_lightning._lightning.tensorboard import tensorboard_loggers
from fl_lightning.callbacks.run.checkpoint import LastRound
from fl_lightning.callbacks.run.decoration import decoration
from fl_lightning.callbacks.server import FederatedServer
from fl_lightning.core.run_folder import short_path
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule


class RunSummary(Callback):
    """Prints one line at the start (the main settings) and a few at the end (the final metrics and the run's files)."""

    def __init__(self) -> None:
        self._trained = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget an earlier fit."""
        self._trained = False

    @decoration
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the main settings of the federation."""
        self._trained = True
        server = next((callback for callback in trainer.callbacks if isinstance(callback, FederatedServer)), None)  # type: ignore[attr-defined]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if server is None or not isinstance(data, FederatedDataModule) or not isinstance(pl_module, FederatedModule):
            return
        parameters = sum(parameter.numel() for parameter in pl_module.trainable_parameters())
        limited = trainer.max_epochs is not None and trainer.max_epochs > 0
        rounds = f"{trainer.max_epochs} rounds" if limited else "unlimited rounds"
        optimizer = f" with {type(trainer.optimizers[0]).__name__}" if server.optimizer else ""
        _print(
            f"{type(pl_module.module).__name__}, {parameters:,} parameters on {pl_module.device}"
            f" | {data.num_clients} clients, {len(data.cohort(0))} per round"
            f" | {rounds}, local epochs {server.client.epochs}"
            f" | {type(server.aggregator).__name__}{optimizer}, weighting {server.weighting}"
            + (f" | resumed at round {trainer.current_epoch + 1}" if trainer.current_epoch else "")
        )

    @decoration
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the final metrics and where the run's files are, or that a resumed run had already finished."""
        log_dir = trainer.log_dir if trainer.loggers else None  # read on every rank, because rank zero broadcasts it
        rounds = trainer.current_epoch
        if not self._trained and trainer.max_epochs is not None and 0 < trainer.max_epochs <= rounds:
            finished = "its only round" if rounds == 1 else f"its {rounds} rounds"
            _print(f"This run has already finished {finished}: to train more, set --trainer.max_epochs above {rounds}")
            return
        metrics = {name: float(trainer.callback_metrics[name]) for name in evaluated_metrics(trainer)}
        early = trainer.max_epochs is not None and 0 < rounds < trainer.max_epochs
        lines = [f"After round {rounds}" + (f" of {trainer.max_epochs}, stopped early" if early else "")]
        lines += [f"  {name:<22} {metrics[name]:.4f}" for name in sorted(metrics)]
        if log_dir:
            lines.append(f"  {'logs':<22} {short_path(log_dir)}")
        for callback in trainer.checkpoint_callbacks:
            path = getattr(callback, "best_model_path", "")
            if path:
                lines.append(f"  {'checkpoint' if isinstance(callback, LastRound) else 'best':<22} {short_path(path)}")
        for logger in tensorboard_loggers(trainer):
            lines.append(f"Look at the curves:  tensorboard --logdir {short_path(logger.log_dir)}")
        _print("\n".join(lines))


@rank_zero_only
def _print(text: str) -> None:
    print(text, flush=True)
