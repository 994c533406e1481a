"""How TensorBoard arranges a run's curves."""

from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning._lightning.tensorboard import tensorboard_loggers
from fl_lightning.callbacks.clients.evaluation import ClientEvaluation
from fl_lightning.callbacks.diagnostics.base import Charts, Diagnostics
from fl_lightning.callbacks.run.decoration import decoration

EVALUATION: Charts = {
    "accuracy, precision, recall, F1": [r"^val.*(acc|precision|recall|f1)"],
    "loss": [r"^train/(global_)?loss$", r"^val.*loss"],
}


class TensorBoardLayout(Callback):
    """Arranges TensorBoard's Custom Scalars: N and E of a layer in one chart, all clients' angles in one, and so on.

    Besides the evaluation, there are charts only for what the Trainer's other callbacks log.
    """

    @decoration
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the layout, unless the run is resumed and has it already."""
        if trainer.current_epoch > 0 or not trainer.is_global_zero:
            return
        layout = {
            category: {title: ["Multiline", tags] for title, tags in charts.items()}
            for category, charts in charts_of(trainer.callbacks, pl_module).items()  # type: ignore[attr-defined]
        }
        for logger in tensorboard_loggers(trainer):
            logger.experiment.add_custom_scalars(layout)


def charts_of(callbacks: list[Callback], pl_module: LightningModule) -> dict[str, Charts]:
    """Return the charts, by category, for what these callbacks log."""
    categories = {"Evaluation": dict(EVALUATION)}
    for callback in callbacks:
        if isinstance(callback, Diagnostics):
            categories |= callback.charts(pl_module)
        elif isinstance(callback, ClientEvaluation):
            categories["Evaluation"]["accuracy over the clients"] = [r"^clients/.*acc"]
    return categories
