"""The client's half of an algorithm."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateDict
from fl_lightning.core.update import ClientUpdate

if TYPE_CHECKING:
    from fl_lightning.client.training import LocalTraining


@dataclass(frozen=True)
class Progress:
    """How far a client has trained in this round.

    Args:
        epoch: the local epoch, counted from 0.
        batch: the batch of this epoch, counted from 0.
        num_batches: the number of batches per epoch.
    """

    epoch: int
    batch: int
    num_batches: int

    @property
    def epochs_done(self) -> float:
        """The number of local epochs that are complete, including the fraction of the current one."""
        return self.epoch + self.batch / self.num_batches


class ClientCallback(Callback):
    """A callback of a client that has access to the federation.

    Every client gets a fresh copy in every round, so attributes do not survive the round. A callback keeps
    what it must remember about its client in :attr:`memory`.

    The hooks of this class work with both kinds of local training: a Trainer per client, and all clients at once
    (``client.execution: vectorized``). A callback that overrides a hook of Lightning's ``Callback`` needs Trainers.

    Attributes:
        client: the client's number.
        round: the round that the client trains in.
        local_training: how clients train.
        memory: tensors by name, as this callback left them after the client's last round; initially empty. Replace
            entries instead of changing them in place.
    """

    client: int
    round: Round
    local_training: "LocalTraining"
    memory: StateDict
    _frozen: Sequence[tuple[nn.Parameter, Tensor]] = ()

    def frozen(self, module: nn.Module) -> Collection[str]:
        """Return the names of the parameters that clients do not train in this round. Called before all other hooks."""
        return ()

    def on_client_start(self, module: LightningModule, optimizers: Sequence[Optimizer]) -> None:
        """Called when a client is about to train, with its module and its optimisers."""

    def on_batch(self, batch: Any) -> Any:
        """Return the batch that the client trains on in place of this one, without changing its tensors.

        The batch is as the loader yields it, before it is moved to the device.
        """
        return batch

    def learning_rate(self, rate: float, progress: Progress) -> float:
        """Return a step's learning rate, given the rate from the optimiser, its scheduler and earlier callbacks."""
        return rate

    def own_tensors(self) -> StateDict:
        """Return the client's own tensors that :meth:`on_gradients` needs. Called after :meth:`on_client_start`."""
        return {}

    def on_gradients(self, gradients: StateDict, parameters: StateDict, own: StateDict) -> StateDict:
        """Return the gradients of a step, before clipping. Gradients that are left out stay as they are.

        With vectorised training, this is called once for all clients, by ``torch.vmap``. So it must compute new tensors
        from its arguments, from the round and from the constructor's arguments, and from nothing else.

        Args:
            gradients: the gradients of the client's loss, by parameter.
            parameters: the client's parameters.
            own: what :meth:`own_tensors` returned.
        """
        return gradients

    def on_step(self, optimizer: Optimizer) -> None:
        """Called before every step of the client's optimiser."""

    def on_upload(self, update: ClientUpdate) -> None:
        """Called after training, before the update is sent. Tensors in ``update.extras`` are sent too."""

    def personal_model(self) -> StateDict:
        """Return the entries in which the client's own model differs from the global one, for ``ClientEvaluation``."""
        return {}

    # Lightning's hooks, through which a Trainer calls the hooks above.

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Freeze parameters before the optimiser is made, so that it can be given only trainable ones."""
        parameters = [pl_module.get_parameter(name) for name in self.frozen(pl_module)]
        self._frozen = [(parameter, parameter.detach().clone()) for parameter in parameters]
        for parameter in parameters:
            parameter.requires_grad_(False)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call :meth:`on_client_start` and collect the client's own tensors."""
        self.on_client_start(pl_module, trainer.optimizers)
        self._own = self.own_tensors()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Change the gradients, before clipping."""
        for parameter, _ in self._frozen:  # so that weight decay and momentum do not change them either
            parameter.grad = None
        if overrides(self, "on_gradients"):
            trained = {name: value for name, value in pl_module.named_parameters() if value.grad is not None}
            gradients = {name: value.grad for name, value in trained.items() if value.grad is not None}
            parameters = {name: value.detach() for name, value in trained.items()}
            with torch.no_grad():
                for name, gradient in self.on_gradients(gradients, parameters, self._own).items():
                    trained[name].grad = gradient
        self.on_step(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the frozen parameters before the client's model is read, in case another callback changed them."""
        with torch.no_grad():
            for parameter, start in self._frozen:
                parameter.copy_(start)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Unfreeze the parameters after an error, when ``teardown`` is not called."""
        self._unfreeze()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Unfreeze the parameters, because the next client trains the same tensors."""
        self._unfreeze()

    def _unfreeze(self) -> None:
        for parameter, _ in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = ()


def overrides(callback: ClientCallback, hook: str) -> bool:
    """Return whether a callback's class overrides a hook of :class:`ClientCallback`."""
    return getattr(type(callback), hook) is not getattr(ClientCallback, hook)
