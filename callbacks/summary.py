"""What a run says of itself in the terminal."""

from pathlib import Path

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from fl_lightning.callbacks.checkpoint import LastRound
from fl_lightning.callbacks.server import FederatedServer
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.tags import evaluated


class RunSummary(Callback):
    """One line at the start, what federation this is; a few at the end: final metrics, and where everything lies."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first round."""
        server = next((callback for callback in trainer.callbacks if isinstance(callback, FederatedServer)), None)  # type: ignore[attr-defined]
        data = trainer.datamodule  # type: ignore[attr-defined]
        if server is None or not isinstance(data, FederatedDataModule) or not isinstance(pl_module, FederatedModule):
            return
        parameters = sum(parameter.numel() for parameter in pl_module.trainable_parameters())
        limited = trainer.max_epochs is not None and trainer.max_epochs > 0
        rounds = f"rounds {trainer.max_epochs}" if limited else "rounds without limit"
        optimizer = f" with {type(trainer.optimizers[0]).__name__}" if server.optimizer else ""
        _print(
            f"{type(pl_module.module).__name__}, {parameters:,} parameters on {pl_module.device}"
            f" | {data.num_clients} clients, {len(data.cohort(0))} a round"
            f" | {rounds}, local epochs {server.client.epochs}"
            f" | {type(server.aggregator).__name__}{optimizer}, weighting {server.weighting}"
            + (f" | resumed at round {trainer.current_epoch + 1}" if trainer.current_epoch else "")
        )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called at the end."""
        metrics = {name: float(trainer.callback_metrics[name]) for name in evaluated(trainer.callback_metrics)}
        early = trainer.max_epochs is not None and 0 < trainer.current_epoch < trainer.max_epochs
        lines = [f"After round {trainer.current_epoch}" + (f" of {trainer.max_epochs}, stopped early" if early else "")]
        lines += [f"  {name:<22} {metrics[name]:.4f}" for name in sorted(metrics)]
        if trainer.log_dir and trainer.loggers:
            lines.append(f"  {'logs':<22} {_shown(trainer.log_dir)}")
        for callback in trainer.checkpoint_callbacks:
            path = getattr(callback, "best_model_path", "")
            if path:
                lines.append(f"  {'checkpoint' if isinstance(callback, LastRound) else 'best':<22} {_shown(path)}")
        if trainer.log_dir and trainer.loggers:
            lines.append(f"Look at the curves:  tensorboard --logdir {_shown(trainer.log_dir)}")
        _print("\n".join(lines))


def _shown(path: str) -> str:
    """Relative to the current folder where that is shorter to read."""
    absolute, here = Path(path).resolve(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


@rank_zero_only
def _print(text: str) -> None:
    print(text, flush=True)
