"""How Lightning calls a module's training step, and which hooks it calls around it."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fl_lightning._lightning.names import LightningModule, is_overridden, is_param_in_hook_signature
from fl_lightning.core.errors import MisconfigurationError

#: hooks of modules and callbacks that Lightning calls for every batch or optimiser step of training
BATCH_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    "on_before_optimizer_step",
)
#: all methods of a module that Lightning calls within a step, besides the step itself
_STEP_HOOKS = (
    *BATCH_HOOKS,
    *("backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "clip_gradients"),
)
_FIT_HOOKS = (
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end"),
    "lr_scheduler_step",
)


def step_hooks(module: LightningModule) -> list[str]:
    """Return the hooks within a training step that a module overrides."""
    return [hook for hook in _STEP_HOOKS if is_overridden(hook, module)]


def training_hooks(module: LightningModule) -> list[str]:
    """Return the hooks of local training that a module overrides."""
    return [hook for hook in (*_FIT_HOOKS, *_STEP_HOOKS) if is_overridden(hook, module)]


def takes_batch_index(module: LightningModule) -> bool:
    """Return whether Lightning passes the number of the batch to a module's training step."""
    return is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)


def training_loss(training_step: Callable[..., Any], batch: Any, index: int, takes_index: bool) -> Tensor | None:
    """Run a training step and return its loss, or None if it skips the batch.

    Args:
        training_step: the module's method, or a strategy's method that calls it.
        batch: the batch.
        index: number of the batch in the local epoch.
        takes_index: whether the step takes this number, see ``takes_batch_index``.
    """
    output = training_step(batch, index) if takes_index else training_step(batch)
    if output is None or isinstance(output, Tensor):
        return output
    loss = output.get("loss") if isinstance(output, Mapping) else None
    if not isinstance(loss, Tensor):
        contents = f"a dictionary of {', '.join(map(str, output))}" if isinstance(output, Mapping) else repr(output)
        raise MisconfigurationError(
            f"training_step returned {contents}, which has no loss: return a tensor, a dictionary with a tensor as"
            " 'loss', or None to skip the batch"
        )
    return loss
