"""When clients can be moved while their gradients are computed."""

from torch.optim import SGD, Optimizer

from fl_lightning.client.callback import overrides
from fl_lightning.client.participants import KeyedCallbacks
from fl_lightning.client.vectorized.stack import ModelStack

#: the size of all clients' parameters, in bytes, from which it pays: about as much as the cache of a core holds
_SMALLEST_STACK = 1 << 20


def is_gradient_descent(optimizer: Optimizer, stack: ModelStack, callbacks: KeyedCallbacks) -> bool:
    """Return whether an optimiser only subtracts gradients, times the learning rate, and no callback sees them first.

    A step of gradient descent has to be recorded before it runs for the first time. Recording
    takes time, so small models compute gradients and step separately.
    """
    if type(optimizer) is not SGD or len(optimizer.param_groups) > 1:
        return False
    (settings,) = optimizer.param_groups
    if any(settings[name] for name in ("momentum", "weight_decay", "maximize", "differentiable")):
        return False
    if any(overrides(callback, hook) for _, callback in callbacks for hook in ("on_gradients", "on_step")):
        return False
    return sum(value.nbytes for value in stack.parameters.values()) >= _SMALLEST_STACK
