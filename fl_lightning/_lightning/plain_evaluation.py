"""An evaluation loop without the hooks that nobody overrides."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from fl_lightning._lightning.delegation import has_batch_hooks
from fl_lightning._lightning.names import Callback, SIGTERMException, is_overridden, is_param_in_hook_signature
from fl_lightning._lightning.package import PACKAGE

if not TYPE_CHECKING and PACKAGE == "lightning.pytorch":
    from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
else:
    from pytorch_lightning.loops.evaluation_loop import _EvaluationLoop


class PlainEvaluationLoop(_EvaluationLoop):
    """Evaluates a batch without searching all callbacks for hooks, if none of them observes the batches.

    For a small network, the search takes as long as the batch. Everything that is computed and counted is the same.
    """

    #: whether no callback and no hook of the module observes the batches of the current evaluation
    _plain = False
    _takes_index = True
    #: whether no hook sees batches on their way to the device
    _direct = False

    def on_run_start(self) -> None:
        """Find out who observes the batches."""
        super().on_run_start()
        module, stage = self.trainer.lightning_module, "test" if self.trainer.testing else "validation"
        hooks = [f"on_{stage}_batch_start", f"on_{stage}_batch_end"]
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        self._plain = not any(is_overridden(hook, observer) for hook in hooks for observer in (module, *callbacks))
        self._takes_index = is_param_in_hook_signature(getattr(module, f"{stage}_step"), "batch_idx", min_args=2)
        owners = [owner for owner in (module, self.trainer.datamodule) if owner is not None]  # type: ignore[attr-defined]
        self._direct = not any(map(has_batch_hooks, owners))

    def _evaluation_step(self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Any) -> None:
        if not self._plain or dataloader_iter is not None:
            super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)
            return
        trainer, progress, strategy = self.trainer, self.batch_progress, self.trainer.strategy
        module, connector = trainer.lightning_module, trainer._logger_connector
        loader = [dataloader_idx] if self._is_sequential and self.num_dataloaders > 1 else []
        batch = trainer.precision_plugin.convert_input(batch)
        if not (self._direct and _is_on(batch, module.device)):
            batch = module._on_before_batch_transfer(batch, dataloader_idx=dataloader_idx)
            batch = strategy.batch_to_device(batch, dataloader_idx=dataloader_idx)
        progress.increment_ready()
        connector.on_batch_start(batch, *loader)
        progress.increment_started()
        name = "test_step" if trainer.testing else "validation_step"
        module._current_fx_name = name
        getattr(strategy, name)(batch, *([batch_idx] if self._takes_index else []), *loader)
        module._current_fx_name = None
        progress.increment_processed()
        # Only values that were logged with on_step=True are shown before the last batch.
        shows_steps = any(item.meta.on_step for item in self._results.values())
        if shows_steps:
            connector.on_batch_end()
        else:
            self._results.batch = self._results.batch_size = None
        progress.increment_completed()
        if not trainer.sanity_checking:
            self._has_run = True
            if shows_steps:
                connector.update_eval_step_metrics(self._seen_batches_per_dataloader[dataloader_idx])
            self._seen_batches_per_dataloader[dataloader_idx] += 1
        if not progress.is_last_batch and trainer.received_sigterm:
            raise SIGTERMException


def _is_on(batch: Any, device: Any) -> bool:
    """Return whether a batch is a list or tuple of tensors on the device, so that there is nothing to move."""
    return type(batch) in (list, tuple) and all(type(part) is Tensor and part.device == device for part in batch)
