"""The one client model that stays in memory and plays every client in turn."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

# These ran once, on the global model: a second `setup` could build a layer anew, `configure_callbacks` would write a
# checkpoint a client.
_RUN_ONCE = ("prepare_data", "setup", "configure_model", "configure_callbacks", "teardown")


class ResidentClient:
    """Tensors that are loaded in place, with Python state that is fresh for every client.

    Loading the state dict alone would leak: whatever a module keeps outside it (counters, metrics, caches, the
    training mode) would pass from client to client.

    Args:
        module: the global model, set up and on its device.
    """

    def __init__(self, module: LightningModule) -> None:
        self._pristine = copy.deepcopy(module, memo={id(module._trainer): None} if module._trainer else {})
        self._pristine.train()
        for name in _RUN_ONCE:
            setattr(self._pristine, name, _nothing)
        self._tensors = self._pristine.state_dict(keep_vars=True)
        self.has_batch_norm = any(isinstance(layer, _BatchNorm) for layer in module.modules())

    def play(self, state: Mapping[str, Tensor]) -> LightningModule:
        """A client that starts from ``state`` and remembers nothing of those before it."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                if isinstance(tensor, Tensor):
                    tensor.copy_(state[name])
                    tensor.grad = None
        return copy.deepcopy(self._pristine, memo={id(tensor): tensor for tensor in self._tensors.values()})


def _nothing(*_: Any, **__: Any) -> None:
    return None
