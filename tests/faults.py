"""Clients that fail on purpose, and federations of them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer
from torch import Tensor

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.callbacks import ClientCallback, FederatedServer
from fl_lightning.data import ClassesPerClient
from fl_lightning.data.selection import Selection
from tests.test_every_algorithm import ALGORITHMS, CLIENT_CALLBACKS, fitting_model
from tests.toys import federate

#: what goes wrong, by round and client
Plan = Mapping[tuple[int, int], str]


class Explode(ClientCallback):
    """Raises an exception in the training of a client."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def on_client_start(self, module, optimizers):
        if self.plan.get((self.round.number, self.client)) == "exception":
            raise ValueError("the client exploded\nin a strange way")


class Break(ClientCallback):
    """Raises an exception in the training of some clients, until there is a file named ``repaired``.

    Args:
        round: the first round in which they fail, counted from 0.
        clients: the clients that fail.
    """

    def __init__(self, round: int, clients: list[int]) -> None:
        self.first_round = round
        self.clients = clients

    def on_client_start(self, module, optimizers):
        if self.round.number >= self.first_round and self.client in self.clients and not Path("repaired").exists():
            raise ValueError("the client broke")


class FaultyTraining(LocalTraining):
    """Lets clients fail according to a plan: with an exception while they train, or with what they send."""

    def __init__(self, plan: Plan, callbacks=(), **options: Any) -> None:
        super().__init__(callbacks=[*callbacks, Explode(plan)], **options)
        self.plan = plan

    def train_cohort(self, clients, round) -> Iterator[Any]:
        for update in super().train_cohort(clients, round):
            fault = self.plan.get((round.number, update.client))
            yield spoil(update, fault) if fault and isinstance(update, ClientUpdate) else update


def spoil(update: ClientUpdate, fault: str) -> ClientUpdate:
    name = next(name for name in update.state if name.endswith("weight"))
    weight = update.state[name].clone()
    if fault == "nan":
        weight.view(-1)[-1] = float("nan")
        update.state = {**update.state, name: weight}
    elif fault == "huge":
        update.state = {**update.state, name: torch.full_like(weight, 3e38)}
    elif fault == "shape":
        update.state = {**update.state, name: weight[1:]}
    elif fault == "missing":
        update.state = {key: value for key, value in update.state.items() if key != name}
    elif fault == "no samples":
        update.num_samples = 0
    elif fault == "loss":
        update.metrics = {"loss": torch.tensor(float("inf"))}
    elif fault == "extras":
        update.extras = {name: value.new_zeros(3, 3) for name, value in update.extras.items()}
    elif fault == "memory":
        update.memory = {
            writer: {name: torch.full_like(value, torch.nan) for name, value in memory.items()}
            for writer, memory in update.memory.items()
        }
    return update


class Without(Selection):
    """Selects all clients but those that a plan lets fail."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def cohort(self, num_clients: int, seed: int, round: int) -> list[int]:
        return [client for client in range(num_clients) if (round, client) not in self.plan]


def run(
    algorithm: str, plan: Plan, module=None, clients: int = 4, client=None, server=None, **options: Any
) -> tuple[dict[str, Tensor], Trainer]:
    """Run a federation in which clients fail, and return the served state and the Trainer."""
    callbacks = [*CLIENT_CALLBACKS.get(algorithm, []), *options.pop("client_callbacks", [])]
    training = FaultyTraining(plan, callbacks, **(client or {}))
    federated, trainer = federate(
        module or fitting_model(algorithm),
        partition=options.pop("partition", ClassesPerClient(clients, 2)),
        server=FederatedServer(ALGORITHMS[algorithm](), client=training, **(server or {})),
        num_sanity_val_steps=0,
        limit_val_batches=0,
        **options,
    )
    return dict(federated.state_dict()), trainer


def kept(trainer: Trainer) -> dict[str, Any]:
    """Return everything that the server keeps for the next round, apart from what it sent to clients."""
    state = trainer.lightning_module.server.state_dict()
    return {
        "bytes": state["bytes"]["up"],
        "memory": {writer: entries for writer, entries in state["store"]["entries"].items() if entries},
        **{name: state[name] for name in ("aggregator", "clients_state")},
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
    }


def same(one: Any, two: Any) -> bool:
    """Return whether nested values are equal, bit for bit."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(*pair) for pair in zip(one, two, strict=True))
    return one == two
