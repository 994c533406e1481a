"""Local training of many clients at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning._lightning.delegation import batch_preparation
from fl_lightning._lightning.names import LightningModule, rank_zero_warn
from fl_lightning._lightning.stateless import NeedsTrainerError, configured_optimizers
from fl_lightning.client.callback import ClientCallback, Progress, overrides
from fl_lightning.client.failures import describe_error, lost_client
from fl_lightning.client.participants import KeyedCallbacks, Participants, keyed_callbacks
from fl_lightning.client.vectorized.batches import CohortBatches, check_batch
from fl_lightning.client.vectorized.descent import is_gradient_descent
from fl_lightning.client.vectorized.requirements import (
    CannotVectorizeError,
    autocast,
    check_callbacks,
    check_flags,
    check_loader,
    check_module,
    check_optimizers,
    check_settings,
)
from fl_lightning.client.vectorized.shared_settings import changed_rates, frozen_parameters, start_clients
from fl_lightning.client.vectorized.stack import ModelStack
from fl_lightning.client.vectorized.step import ClientStep
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import Generators, preserved_generators, seed_for
from fl_lightning.core.round import Round
from fl_lightning.core.update import ClientUpdate, LostClient

#: how much memory a chunk of clients may take on a CPU: a fixed number, so that results do not depend on the machine
_CPU_BUDGET = 2 << 30
#: parameters, gradients, the optimiser's two moments, and as much again for intermediate results of a step
_COPIES_PER_CLIENT = 8


class VectorizedTraining:
    """Trains the clients of a cohort at once, in chunks that fit into memory.

    The clients' models are stacked. One call of ``torch.vmap`` computes the gradients of all clients, and one step of
    the module's own optimiser moves all of them. The results are the same as with a Trainer per client, up to float
    rounding.

    Args:
        module: the global model, set up and on its device.
        participants: the clients' batches, callbacks and updates.
        batches_in_place: whether batches are already on the device and no hook of the module or the data changes them.
        flags: flags of a client's Trainer.
        chunk: how many clients train at once; None chooses a number that fits into memory.
        max_batches: stop every client after this many batches, for a trial run.
    """

    def __init__(
        self,
        module: LightningModule,
        participants: Participants,
        batches_in_place: bool,
        flags: Mapping[str, Any],
        chunk: int | None = None,
        max_batches: int | None = None,
    ) -> None:
        check_module(module)
        check_callbacks(participants.callbacks)
        check_flags(flags)
        check_settings(participants.local_training)
        self._participants = participants
        self._max_batches = max_batches
        self._clip_value = flags.get("gradient_clip_val")
        self._clip_norm = flags.get("gradient_clip_algorithm") != "value"
        self._device = module.device
        self._autocast = autocast(flags, self._device)
        source = participants.data.source
        self._prepare = None if batches_in_place else batch_preparation(module, source, self._device)
        self._module = module
        self._prepare_step()
        # If the learning rate depends on how far a client has trained, all clients of a chunk must progress alike.
        self._scheduled = self._has_schedulers or any(
            overrides(callback, "learning_rate") for _, callback in keyed_callbacks(participants.callbacks)
        )
        self._chunk = chunk or self._fitting_chunk()

    def _prepare_step(self) -> None:
        """Find out how to take one step of all clients, or raise the reason why that is impossible."""
        module = self._module
        self._trainable = _trainable(module)
        self._step = ClientStep(module)
        self._names = _names(self._step.module)
        self._parameters = dict(self._step.module.named_parameters())
        try:
            optimizers, schedulers = configured_optimizers(self._step.module)
        except NeedsTrainerError as error:
            raise CannotVectorizeError(f"configure_optimizers of {type(module).__name__} {error}") from error
        check_optimizers(self._step.module, optimizers, schedulers)
        self._has_schedulers = bool(schedulers)
        batch = self._first_batch()
        with preserved_generators(), self._autocast:  # dropout draws numbers before it is refused
            self._used = self._step.probe(batch)

    def train_together(self, clients: Sequence[int], round: Round) -> Iterator[list[ClientUpdate | LostClient]]:
        """Train the clients, each from the round's start, and yield the updates of one chunk after another."""
        if _trainable(self._module) != self._trainable:  # a callback of the server has frozen or unfrozen layers
            self._prepare_step()
        groups: dict[tuple[int, ...], list[int]] = {}
        for client in clients:
            key: tuple[int, ...] = ()
            if self._scheduled:
                key = len(self._participants.loader(client, round.number)), self._epochs_of(client, round)
            groups.setdefault(key, []).append(client)
        for group in groups.values():
            for start in range(0, len(group), self._chunk):
                yield self._try_together(group[start : start + self._chunk], round)

    def _try_together(self, clients: list[int], round: Round) -> list[ClientUpdate | LostClient]:
        """Train a chunk of clients. If that fails, find out which client is to blame by training each of them alone."""
        try:
            return [*self._train(clients, round)]
        except (CannotVectorizeError, MisconfigurationError):  # not a client's fault
            raise
        except Exception as error:
            if len(clients) == 1:
                return [lost_client(clients[0], error)]
            reason = describe_error(error)
        alone: list[ClientUpdate | LostClient] = []
        for client in clients:
            alone += self._try_together([client], round)
            if isinstance(alone[-1], LostClient) and self._participants.local_training.on_error == "raise":
                return alone[-1:]
        lost = [result for result in alone if isinstance(result, LostClient)]
        if not lost:
            rank_zero_warn(
                f"{len(clients)} clients could not train at once ({reason}), so each of them trained alone:"
                " set client.chunk to a smaller number"
            )
            return alone
        # They train together once more, because a client that trains alone may differ in its last bits.
        rest = [result.client for result in alone if isinstance(result, ClientUpdate)]
        return [*lost, *(self._try_together(rest, round) if rest else ())]

    def _epochs_of(self, client: int, round: Round) -> int:
        return 1 if self._max_batches is not None else self._participants.local_training.epochs_of(client, round)

    def _train(self, clients: list[int], round: Round) -> list[ClientUpdate]:
        generators = [Generators(seed_for("client", round.seed, round.number, client)) for client in clients]
        callbacks = [self._participants.copy_callbacks(client, round) for client in clients]
        loaders = [
            self._participants.loader(client, round.number, [callback for _, callback in own])
            for client, own in zip(clients, callbacks, strict=True)
        ]
        epochs = [self._epochs_of(client, round) for client in clients]
        batches = CohortBatches(loaders, epochs, self._prepare, generators, self._step.reads_index, self._max_batches)
        optimizer, schedulers, stack = self._begin(clients, round, callbacks, generators)
        own = [_stacked_tensors(column) for column in zip(*callbacks, strict=True)]
        losses = torch.zeros(len(clients), device=self._device)
        rates = [0.0] * len(clients)

        steps_done = 0

        def clients_done() -> float:
            return len(clients) * steps_done / max(batches.num_steps)

        descends = self._clip_value is None and is_gradient_descent(optimizer, stack, callbacks[0])
        for number, groups in enumerate(batches):
            active = [row for group in groups for row in group.rows]
            progress = Progress(*divmod(number, batches.num_batches[0]), batches.num_batches[0])
            with changed_rates(optimizer, [callbacks[row] for row in active], progress):
                rate = float(optimizer.param_groups[0]["lr"])
                descended = descends
                for group in groups:
                    with self._autocast:
                        loss = stack.descend(self._step, group, rate) if descends else None
                        if loss is None:
                            descended = False
                            loss = stack.take_gradients(self._step, group)
                        loss = loss.to(losses)
                    losses = losses + loss if group.where is None else losses.index_add(0, group.where, loss)
                for (_, callback), tensors in zip(callbacks[0], own, strict=True):
                    if overrides(callback, "on_gradients"):
                        stack.change_gradients(callback, tensors)
                self._clip(optimizer)
                for row in active:
                    rates[row] = rate
                    for _, callback in callbacks[row]:
                        callback.on_step(optimizer)
                if not descended or schedulers:  # a scheduler warns if its optimiser has taken no step
                    optimizer.step()
            if number + 1 < max(batches.num_steps):
                stack.finish([row for row in active if batches.num_steps[row] == number + 1])
            _advance(schedulers, "step")
            if progress.batch + 1 == progress.num_batches:
                _advance(schedulers, "epoch")
            steps_done = number + 1
            self._participants.local_training.report_progress(clients_done)

        updates = []
        for row, client in enumerate(clients):
            with generators[row] if callbacks[row] else nullcontext():  # without callbacks, nothing is random here
                update = self._participants.update(
                    client,
                    round,
                    stack.state(row, self._names),
                    callbacks[row],
                    num_steps=batches.num_steps[row],
                    learning_rate=rates[row],
                    metrics={"loss": losses[row] / batches.num_steps[row]},
                )
            updates.append(update)
        return updates

    def _begin(
        self,
        clients: list[int],
        round: Round,
        callbacks: list[KeyedCallbacks],
        generators: list[Generators],
    ) -> tuple[Optimizer, list[Any], ModelStack]:
        """Stack the clients' models and make the optimiser that moves them."""
        module = self._step.module
        for name, parameter in self._parameters.items():
            parameter.requires_grad_(name in self._trainable)
        frozen = frozen_parameters(module, callbacks)
        for name in frozen:
            self._parameters[name].requires_grad_(False)
        trained = [name for name in self._used if name not in frozen]
        stack = ModelStack(module, trained, [round.start_of(client) for client in clients])
        (optimizer,), schedulers = configured_optimizers(module)
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        start_clients(module, optimizer, callbacks, generators)
        for group in optimizer.param_groups:
            group["params"] = [
                stack.parameters[names[id(parameter)]]
                for parameter in group["params"]
                if names[id(parameter)] in stack.parameters
            ]
        return optimizer, schedulers, stack

    def _clip(self, optimizer: Optimizer) -> None:
        """Clip each client's gradient, as ``gradient_clip_val`` and ``gradient_clip_algorithm`` say."""
        if self._clip_value is None or self._clip_value <= 0:
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self._clip_norm:
            for gradient in gradients:
                gradient.clamp_(-self._clip_value, self._clip_value)
            return
        norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        factors = (self._clip_value / (norms + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))

    def _first_batch(self) -> Any:
        data = self._participants.data
        client = (data.cohort(0) or [0])[0]  # the first round may have no client
        with Generators(seed_for("client", data.seed, 0, client)):
            loader = self._participants.loader(client, 0)
            check_loader(loader)
            batch = next(iter(loader))
            batch = batch if self._prepare is None else self._prepare(batch)
        check_batch(batch)
        return batch

    def _fitting_chunk(self) -> int:
        state = sum(value.nbytes for value in self._step.module.state_dict().values() if isinstance(value, Tensor))
        budget = _CPU_BUDGET
        if self._device.type == "cuda":
            budget = torch.cuda.get_device_properties(self._device).total_memory // 4
        return max(1, budget // max(1, _COPIES_PER_CLIENT * state))


def _trainable(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def _names(module: nn.Module) -> dict[str, str]:
    """Map each entry of a module's state to its name in ``named_parameters`` or ``named_buffers``."""
    kept = {id(value): name for name, value in [*module.named_parameters(), *module.named_buffers()]}
    state = {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    for name, value in state.items():
        if id(value) not in kept:
            raise CannotVectorizeError(f"{name} of {type(module).__name__} is neither a parameter nor a buffer")
    return {name: kept[id(value)] for name, value in state.items()}


def _stacked_tensors(callbacks: Sequence[tuple[str, ClientCallback]]) -> dict[str, Tensor]:
    """Stack the tensors that differ between clients, given each client's copy of one callback."""
    own = [callback.own_tensors() for _, callback in callbacks]
    return {name: torch.stack([tensors[name] for tensors in own]) for name in own[0]}


def _advance(schedulers: Sequence[Any], interval: str) -> None:
    for config in schedulers:
        if config.interval == interval:
            config.scheduler.step()
