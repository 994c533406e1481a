"""Memory for intermediate results."""

import torch
from torch import Tensor


class Scratch:
    """One vector whose memory is reused, because allocating a large vector can cost more than computing with it."""

    def __init__(self) -> None:
        self._vector = torch.empty(0)

    def vector(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the vector, with any content. The next call returns the same memory."""
        kept = self._vector
        if (kept.numel(), kept.dtype, kept.device) != (size, dtype, device):
            self._vector = torch.empty(size, dtype=dtype, device=device)
        return self._vector

    def copy(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a copy of the values in another type, in the memory of :meth:`vector`."""
        return self.vector(values.numel(), dtype, values.device).copy_(values)
