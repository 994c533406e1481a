"""The one client model that stays in memory and plays every client in turn."""

import copy
from collections.abc import Mapping

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Metric, MetricCollection

from fl_lightning.delegation import blank_hooks

# These ran once, on the global model: a second `setup` could build a layer anew, `configure_callbacks` would write a
# checkpoint a client.
_RUN_ONCE = ("prepare_data", "setup", "configure_model", "configure_callbacks", "teardown")


class ResidentClient:
    """Tensors that are loaded in place, with Python state that is fresh for every client.

    Loading the state dict alone would leak: whatever a module keeps outside it (counters, caches, the training mode)
    would pass from client to client. Metrics are reset instead of copied: that is what their ``reset`` is for, and
    copying a collection of them takes longer than ten training steps of a small network.

    Args:
        module: the global model, set up and on its device.
    """

    def __init__(self, module: LightningModule) -> None:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise MisconfigurationException(
                    f"{name} of {type(module).__name__} is lazy and has no shape yet, so it cannot be sent to clients:"
                    " run one batch through the model in its __init__ or setup"
                )
        self._pristine = detached_copy(module)
        self._pristine.train()
        blank_hooks(self._pristine, LightningModule, _RUN_ONCE)
        self._tensors = self._pristine.state_dict(keep_vars=True)
        self._requires_grad = {n: t.requires_grad for n, t in self._tensors.items() if isinstance(t, nn.Parameter)}
        self._metrics = [layer for layer in self._pristine.modules() if isinstance(layer, Metric | MetricCollection)]
        self._shared = {id(item): item for item in [*self._tensors.values(), *self._metrics]}
        self.has_batch_norm = any(isinstance(layer, _BatchNorm) for layer in module.modules())

    def play(self, state: Mapping[str, Tensor]) -> LightningModule:
        """A client that starts from ``state`` and remembers nothing of those before it."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if isinstance(tensor, Tensor):
                    tensor.copy_(state[name])
                    tensor.grad = None
        for name, trainable in self._requires_grad.items():
            self._tensors[name].requires_grad_(trainable)
        for metric in self._metrics:
            if isinstance(metric, Metric) and metric.update_called:
                metric.reset()
        return copy.deepcopy(self._pristine, memo=dict(self._shared))


def detached_copy(module: LightningModule) -> LightningModule:
    """A copy of a module without its Trainer, and without what it noted of its own metrics' identities.

    It plays a client, whose metrics are its own, also where ranks could exchange theirs.
    """
    detached = copy.deepcopy(module, memo={} if module._trainer is None else {id(module._trainer): None})
    detached._metric_attributes = None
    for layer in detached.modules():
        if isinstance(layer, Metric):
            layer.distributed_available_fn = _never
    return detached


def _never() -> bool:
    return False
