"""One training step of many clients, as a function of their stacked parameters, buffers and batches."""

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from fl_lightning._lightning.attributes import describe_attributes, first_change
from fl_lightning._lightning.names import LightningModule
from fl_lightning._lightning.stateless import NeedsTrainerError, stateless_copy
from fl_lightning._lightning.training_step import takes_batch_index, training_loss
from fl_lightning.client.vectorized.recording import move_parameters, record
from fl_lightning.client.vectorized.requirements import CannotVectorizeError
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.state import StateDict

#: gradients, buffers and losses of all clients
Result = tuple[StateDict, StateDict, Tensor]

#: how often a step of some shape runs before it is recorded, and how many shapes are recorded. Recording takes as long
#: as 50 steps of a small network, so it must not be done for a shape that hardly ever occurs.
_RUNS_BEFORE_RECORDING = 30
_MAX_RECORDINGS = 8
#: how many steps of gradient descent are kept; the oldest is recorded again if it is needed once more
_MAX_DESCENTS = 32


@contextmanager
def _exact_products() -> Iterator[None]:
    """Multiply matrices with all digits of float32, so that two ways to compute a gradient differ by rounding only."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


class ClientStep:
    """The gradients of a module's training step, for many clients at once.

    A step of the same shape runs many times, so it is recorded as a sequence of tensor operations and replayed, which
    costs a third less than ``torch.vmap`` for a small network. Replaying yields the same bits.

    Args:
        module: the global model, set up and on its device.
    """

    def __init__(self, module: LightningModule) -> None:
        self.module = stateless_copy(module)
        self._wrapper = _TrainingStep(self.module)
        self._runs: dict[Any, int] = {}
        self._recordings: dict[Any, Callable[..., Result]] = {}
        self._descents: dict[Any, Callable[..., Result] | None] = {}
        self._can_record = True
        #: whether the training step depends on the number of the batch
        self.reads_index = _reads_batch_index(type(module).training_step)
        self._vectorized = vmap(grad(self._loss, has_aux=True), in_dims=(0, 0, None, 0, None), randomness="error")

    def __call__(
        self, parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any, index: int
    ) -> Result:
        """Return the clients' gradients, their buffers after the step, and their losses.

        Args:
            parameters: the trained parameters, stacked along a first dimension of clients.
            buffers: the buffers, stacked likewise. They may be changed in place.
            constants: tensors of the module that are the same for all clients.
            batch: one batch per client, stacked.
            index: number of the batch in the local epoch.
        """
        key = _key(parameters, buffers, constants, batch)
        if key in self._recordings:
            with torch.no_grad():
                return self._recordings[key](parameters, buffers, constants, batch)
        self._runs[key] = self._runs.get(key, 0) + 1
        if (
            self._can_record
            and not self.reads_index
            and self._runs[key] > _RUNS_BEFORE_RECORDING
            and len(self._recordings) < _MAX_RECORDINGS
        ):
            self._recordings[key] = self._record(parameters, buffers, constants, batch)
        return self._run(parameters, buffers, constants, batch, index)

    def descend(
        self, parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any, rate: float
    ) -> tuple[StateDict, Tensor] | None:
        """Move the parameters by gradient descent, and return the clients' buffers after the step and their losses.

        Gradients are added to the parameters while they are computed, so the result differs from separate steps by
        rounding. Whether this is possible depends on the step and its shapes only, and not on what ran before, so that
        a resumed run repeats every bit.

        Args:
            parameters: the trained parameters, stacked; they are changed in place.
            buffers: as for a call of the step.
            constants: as for a call of the step.
            batch: as for a call of the step.
            rate: the learning rate.

        Returns:
            None if the step cannot be recorded. Then nothing has changed.
        """
        if self.reads_index or not self._can_record:
            return None
        key = _key(parameters, buffers, constants, batch)
        if key not in self._descents:
            if len(self._descents) == _MAX_DESCENTS:
                del self._descents[next(iter(self._descents))]
            self._descents[key] = self._record_descent(parameters, buffers, constants, batch)
        descent = self._descents[key]
        if descent is None:
            return None
        with torch.no_grad():
            _, buffers, losses = descent(parameters, buffers, constants, batch, -rate)
        return buffers, losses

    @_exact_products()
    def _record_descent(
        self, parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any
    ) -> Callable[..., Result] | None:
        """Return a recording that moves the parameters, or None if it does not move them as the step's gradients do."""

        def step(
            parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any, negative_rate: float
        ) -> Result:
            return self._run(parameters, buffers, constants, batch, 0)

        moved = _copies(parameters)
        try:
            recording = record(step, parameters, _copies(buffers), constants, batch, -1.0)
            move_parameters(recording, len(parameters))
            with torch.no_grad():
                recording(moved, _copies(buffers), constants, batch, -1.0)
        except Exception:
            self._can_record = False
            return None
        gradients, *_ = self._run(parameters, _copies(buffers), constants, batch, 0)
        same = [_close(moved[name], value - gradients[name]) for name, value in parameters.items()]
        return recording if torch.stack(same).all() else None  # the host waits for a GPU, once per recording

    def _run(self, parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any, index: int) -> Result:
        gradients, (buffers, losses) = self._vectorized(parameters, buffers, constants, batch, index)
        return gradients, buffers, losses

    def _record(
        self, parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any
    ) -> Callable[..., Result]:
        """Return a recording of the step, or the step itself if replaying the recording does not repeat it."""

        def step(parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any) -> Result:
            return self._run(parameters, buffers, constants, batch, 0)

        def on_copies(function: Callable[..., Any]) -> Any:
            return function(parameters, _copies(buffers), constants, batch)

        try:
            recording = on_copies(partial(record, step))
            with torch.no_grad():
                replayed = tree_leaves(on_copies(recording))
        except Exception:  # some operations of torch can be vectorised but not recorded, for example those of an LSTM
            self._can_record = False
            return step
        same = [(one == two).all() for one, two in zip(replayed, tree_leaves(on_copies(step)), strict=True)]
        return recording if torch.stack(same).all() else step  # the host waits for a GPU, once per recording

    def _loss(
        self, parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any, index: int
    ) -> tuple[Tensor, tuple[StateDict, Tensor]]:
        state = {**constants, **parameters, **buffers}
        prefixed = {f"module.{name}": value for name, value in state.items()}
        loss = functional_call(self._wrapper, prefixed, (batch, index))
        return loss, ({name: prefixed[f"module.{name}"] for name in buffers}, loss.detach())

    @_exact_products()
    def probe(self, batch: Any) -> list[str]:
        """Try one step, and return the parameters that it uses. Raise the reason if the step cannot be vectorised.

        Args:
            batch: one batch of one client, not stacked.
        """
        parameters = {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}
        constants = {n: p.detach() for n, p in self.module.named_parameters() if not p.requires_grad}
        buffers = {name: value.clone() for name, value in self.module.named_buffers()}
        name = type(self.module).__name__
        try:
            before = describe_attributes(self.module)
            used, expected = self._plain_step(batch)
            if changed := first_change(before, describe_attributes(self.module)):
                raise CannotVectorizeError(f"the training step of {name} changes self.{changed}")
            twice = tree_map(lambda leaf: torch.stack([leaf, leaf]), (parameters, buffers, batch))
            gradients, buffers, _ = self._run(twice[0], twice[1], constants, twice[2], 0)
        except (CannotVectorizeError, MisconfigurationError):
            raise
        except NeedsTrainerError as error:
            raise CannotVectorizeError(f"the training step of {name} {error}") from error
        except Exception as error:
            raise CannotVectorizeError(f"the training step of {name} {_explanation(error)}") from error
        for name, gradient in used.items():
            if not _close(gradients[name][1], gradient):
                raise CannotVectorizeError(f"the gradient of {name} from torch.vmap differs from a plain step's")
        for name, value in expected.items():
            if not _close(buffers[name][1], value):
                raise CannotVectorizeError(f"{name} from torch.vmap differs from a plain step's")
        return list(used)

    def _plain_step(self, batch: Any) -> tuple[StateDict, StateDict]:
        """Return the gradients of a plain step, none for parameters that the loss does not use, and the buffers."""
        trained = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
        buffers = {f"module.{name}": value.clone() for name, value in self.module.named_buffers()}
        loss = functional_call(self._wrapper, buffers, (batch, 0))
        values = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        gradients = {name: value for name, value in zip(trained, values, strict=True) if value is not None}
        return gradients, {name.removeprefix("module."): value for name, value in buffers.items()}


def _key(parameters: StateDict, buffers: StateDict, constants: StateDict, batch: Any) -> Any:
    """Return what a recording depends on."""
    leaves, structure = tree_flatten(batch)
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return tuple(parameters), tuple(buffers), tuple(constants), str(structure), shapes


def _copies(tensors: StateDict) -> StateDict:
    return {name: value.clone() for name, value in tensors.items()}


class _TrainingStep(nn.Module):
    """Makes a module's ``training_step`` its ``forward``, which is what ``functional_call`` calls."""

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        self.module = module
        self._takes_index = takes_batch_index(module)

    def forward(self, batch: Any, index: int) -> Tensor:
        loss = training_loss(self.module.training_step, batch, index, self._takes_index)
        if loss is None:
            raise CannotVectorizeError(f"the training step of {type(self.module).__name__} returns no loss")
        return loss


def _reads_batch_index(training_step: Callable[..., Any]) -> bool:
    """Return whether a training step reads its second argument. A step that does cannot be replayed."""
    code = getattr(training_step, "__code__", None)
    if code is None or code.co_argcount > 3 or code.co_flags & 0x0C:  # *args or **kwargs
        return True
    if code.co_argcount < 3:
        return False
    name = code.co_varnames[2]
    read = [operation.argval for operation in dis.get_instructions(code)]  # from Python 3.13 on, also pairs of names
    return any(value == name or (isinstance(value, tuple) and name in value) for value in read)


def _close(found: Tensor, expected: Tensor) -> Tensor:
    """Return whether two tensors differ by rounding only, which is coarse under autocast."""
    if not torch.is_autocast_enabled(found.device.type):
        return torch.isclose(found, expected, rtol=1e-3, atol=1e-5, equal_nan=True).all()
    largest = expected.nan_to_num().abs().max() if expected.numel() else expected.new_zeros(())
    close = (found - expected).abs() <= 0.05 * (expected.abs() + largest)
    return (close | (found.isnan() & expected.isnan())).all()


def _explanation(error: Exception) -> str:
    """Say what a training step does that ``torch.vmap`` does not allow."""
    message = str(error)
    if "random operation" in message:
        return "draws random numbers, for example in dropout"
    if ".item()" in message or "data-dependent" in message:
        return "reads the value of a tensor, for example by .item() or in an if"
    return f"fails in torch.vmap: {message.strip().partition(chr(10))[0]}"
