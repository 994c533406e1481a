"""Where tensors that outlive a round are kept: on the GPU while they fit, otherwise in pinned memory of the host."""

import torch
from torch import Tensor

from fl_lightning.core.state import StateDict
from fl_lightning.core.transfer import free_memory, to_pinned_memory


class Shelf:
    """Decides where tensors are kept, so that the tensors of many clients do not fill a GPU.

    Together they take at most half of the memory that is free on the GPU when the first tensor arrives. Only
    :meth:`settle` makes the host wait.
    """

    def __init__(self) -> None:
        self._budget: float | None = None
        self._copying = False

    def place(self, values: StateDict, replaced: StateDict | None = None) -> StateDict:
        """Return the tensors where they are kept; ``replaced`` holds the tensors that they replace."""
        return {name: self._place(value.detach(), (replaced or {}).get(name)) for name, value in values.items()}

    def settle(self) -> None:
        """Wait until all copies to the host are complete; call it before the host reads a tensor."""
        if self._copying:
            torch.cuda.synchronize()
            self._copying = False

    def _place(self, value: Tensor, replaced: Tensor | None) -> Tensor:
        if not value.is_cuda:
            return value
        if self._budget is None:
            self._budget = free_memory(value.device) / 2
        freed = replaced.nbytes if replaced is not None and replaced.is_cuda else 0
        if value.nbytes - freed <= self._budget:
            self._budget -= value.nbytes - freed
            return value
        self._budget += freed
        self._copying = True
        return to_pinned_memory(value)
