"""The single client model that stays in memory and is reused for one client after another."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.client_module import client_copy, shared_callables, with_fast_attributes
from fl_lightning._lightning.copying import copy_module
from fl_lightning._lightning.names import LightningModule, rank_zero_info
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.widths import resize


class ClientModel:
    """A model whose tensors are loaded in place and whose Python state is fresh for every client.

    Loading the state dict alone would leak: whatever a module keeps outside it (counters, caches, the training mode)
    would pass from client to client. Metrics are reset instead of copied, because copying a collection of them takes
    longer than ten training steps of a small network.

    Args:
        module: the global model, set up and on its device.
    """

    def __init__(self, module: LightningModule) -> None:
        for name, parameter in module.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise MisconfigurationError(
                    f"{name} of {type(module).__name__} is lazy and has no shape yet, so it cannot be sent to clients:"
                    " run one batch through the model in its __init__ or setup"
                )
        uncopied: list[str] = []
        self._pristine = client_copy(module, uncopied)
        if uncopied:
            name = type(module).__name__
            rank_zero_info(f"Clients share attributes of {name} that cannot be copied: {', '.join(uncopied)}")
        #: the global model
        self.module = module
        self._pristine.train()
        self._tensors = self._pristine.state_dict(keep_vars=True)
        self._global = [(name, t) for name, t in module.state_dict(keep_vars=True).items() if isinstance(t, Tensor)]
        self._metrics = [layer for layer in self._pristine.modules() if isinstance(layer, Metric | MetricCollection)]
        shared = [*self._tensors.values(), *self._metrics, *shared_callables(self._pristine)]
        self._shared = {id(item): item for item in shared}
        self.has_batch_norm = any(isinstance(layer, _BatchNorm) for layer in module.modules())

    def reset(self, state: Mapping[str, Tensor]) -> LightningModule:
        """Return a module that starts from ``state`` and keeps nothing from earlier clients."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if isinstance(tensor, Tensor):
                    if tensor.shape != state[name].shape:  # the global model has grown
                        resize(self._pristine, state)
                    tensor.copy_(state[name])
                    tensor.grad = None
        for name, tensor in self._global:  # a callback of the server may unfreeze layers between rounds
            self._tensors[name].requires_grad_(tensor.requires_grad)
        for metric in self._metrics:
            if isinstance(metric, Metric) and metric.update_called:
                metric.reset()
        client, _ = copy_module(self._pristine, self._shared)
        return with_fast_attributes(client)
