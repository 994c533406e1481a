"""FedMA: federated matched averaging.

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni. Federated Learning with Matched Averaging. ICLR 2020 (algorithm 1).
https://arxiv.org/abs/2002.06440

Two clients may learn the same unit at different positions, so an average by position mixes units that do not belong
together. FedMA finds out which units do (:mod:`~fl_lightning.aggregation.fedma.matching`). It works layer by layer,
because the inputs of a layer are comparable only once the units of the previous layer are at the same positions.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregate, Federation, GatheredAggregator
from fl_lightning.aggregation.fedma.chain import Layer, move_columns, read_chain
from fl_lightning.aggregation.fedma.matching import Process, map_atoms, match, mean_atoms
from fl_lightning.client import ClientCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.randomness import generator_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict


class FedMA(GatheredAggregator):
    """Matches the clients' units, one layer per round, and averages the units that belong together.

    A pass over a chain of L layers takes L rounds. In stage l, the layers before l are common to all clients and frozen
    during local training. Layer l is matched. A client that took part continues with its own later layers, whose inputs
    are permuted in the same way as its units; any other client starts from the served model. The last layer is averaged
    by the clients' class counts, then a new pass begins. The model served after each round is complete: the remaining
    layers of the pass are matched without training in between.

    The model keeps its width, and each client's units are matched with the model's units one to one. ``sigma``,
    ``sigma0`` and ``gamma`` therefore do not change the match. They matter only if the number of units may grow, as the
    ``max_width`` of :func:`fl_lightning.aggregation.fedma.matching.match` allows.

    Units change positions from round to round, so FedMA rejects a server optimiser, which would update each weight from
    its previous value. The model must be a plain chain of ``Conv2d`` and ``Linear``.

    Args:
        sigma: σ, the variance of a client's unit around the common one.
        sigma0: σ0, the variance of the common units around 0.
        gamma: γ, how readily a new unit is created.
        sweeps: how many times every client is matched again with all the others.
        estimate: ``mean`` makes a matched unit the mean of its members, weighted like the clients; ``map`` also shrinks
            it towards 0, by J / (J + 1) with J clients and σ = σ0.
        one_shot: makes every round a whole pass, without training in between.
    """

    def __init__(
        self,
        sigma: float = 1.0,
        sigma0: float = 1.0,
        gamma: float = 7.0,
        sweeps: int = 5,
        estimate: Literal["mean", "map"] = "mean",
        one_shot: bool = False,
    ) -> None:
        for name, value in (("sigma", sigma), ("sigma0", sigma0), ("gamma", gamma)):
            if value <= 0:
                raise MisconfigurationError(f"{name}={value}: set {name} of FedMA above 0")
        if sweeps < 0:
            raise MisconfigurationError(f"sweeps={sweeps}: set sweeps of FedMA to 0 or more")
        if estimate not in ("mean", "map"):
            raise MisconfigurationError(f"estimate={estimate!r}: set estimate of FedMA to mean or map")
        self.sigma = sigma
        self.sigma0 = sigma0
        self.gamma = gamma
        self._process = Process(sigma, sigma0, gamma)
        self.sweeps = sweeps
        self.estimate = estimate
        self.one_shot = one_shot
        #: l, the layer that is matched next
        self.stage = 0
        #: the clients that continue with layers of their own
        self._holders: list[int] = []
        self._chain: list[Layer] = []

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        if federation.optimizer is not None:
            raise MisconfigurationError(
                "server.optimizer is set, but FedMA's units change positions from round to round, so updating each"
                " weight from its previous value mixes different units: leave server.optimizer out, or use another"
                " aggregator"
            )
        read_chain(model)

    def client_callbacks(self) -> list[ClientCallback]:
        return [FrozenLayers()]

    def broadcast(self) -> dict[str, Tensor]:
        return {"stage": torch.tensor(self.stage)}

    def personal_state(self, client: int) -> StateDict:
        return self.memory.get(client, self.device) or {}

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self._chain = read_chain(model)

    def finish_round(self) -> Aggregate:
        models = [self.layout.split(self.layout.parameters, item.state.parameters) for item in self.received]
        generator = generator_for("fedma", self.seed, self.round.number)
        common: StateDict = {}
        personal: dict[int, StateDict] = {}
        for number in range(self.stage, len(self._chain) - 1):
            layer, rest = self._chain[number], self._chain[number + 1 :]
            rows, places = self._match(layer, models, generator)
            common |= layer.from_rows(rows, self.layout.shapes)
            for model, place in zip(models, places, strict=True):
                model[rest[0].weight] = move_columns(model[rest[0].weight], place)
            if number == self.stage and not self.one_shot:
                personal = self._own_layers(rest, models)
        common |= self._average(self._chain[-1], models)
        metrics: dict[str, float | Tensor] = {"fedma/stage": float(self.stage)}
        self._advance(personal)
        return Aggregate(self._complete(common), metrics=metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "holders": list(self._holders)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.stage = state_dict["stage"]
        self._holders = list(state_dict["holders"])

    def _match(
        self, layer: Layer, models: list[StateDict], generator: np.random.Generator
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the common rows of a layer, and the new positions of each client's units."""
        clients = [layer.rows(model).cpu().double().numpy() for model in models]
        for item, rows in zip(self.received, clients, strict=True):
            if not np.isfinite(rows).all():
                raise MisconfigurationError(
                    f"layer {layer.name} of client {item.update.client} is not finite, so it cannot be matched:"
                    " lower the clients' learning rate"
                )
        places = match(clients, self._process, generator, self.sweeps, max_width=len(clients[0]))
        weights = self.weights.tolist()
        if self.estimate == "mean":
            atoms = mean_atoms(clients, places, weights)
        else:
            atoms = map_atoms(clients, places, weights, self._process)
        return torch.from_numpy(atoms), [torch.from_numpy(place).to(self.device) for place in places]

    def _average(self, layer: Layer, models: list[StateDict]) -> StateDict:
        """Average the last layer: unit c weights the clients by n_k^c / n^c, or by p_k if no client holds class c.

        All units use p_k if a client reports no class counts or the units are not the classes.
        """
        rows = torch.stack([layer.rows(model).to(self.dtype) for model in models])
        shares = self.weights[:, None].expand(rows.shape[:2])
        counts = [item.update.class_counts for item in self.received]
        known = [count.to(rows) for count in counts if count is not None and len(count) == rows.shape[1]]
        if len(known) == len(models):
            held = torch.stack(known)
            shares = torch.where(held.sum(0) > 0, held / held.sum(0), shares)
        return layer.from_rows(torch.einsum("ku,kud->ud", shares, rows), self.layout.shapes)

    def _own_layers(self, layers: list[Layer], models: list[StateDict]) -> dict[int, StateDict]:
        names = [name for layer in layers for name in layer.tensors]
        return {
            item.update.client: {name: model[name].clone() for name in names}
            for item, model in zip(self.received, models, strict=True)
        }

    def _advance(self, personal: dict[int, StateDict]) -> None:
        """Store the clients' own layers, drop those of earlier stages, which no longer fit, and advance the stage."""
        for client in self._holders:
            if client not in personal:
                self.memory.put(client, {})
        for client, state in personal.items():
            self.memory.put(client, state)
        self._holders = list(personal)
        if not self.one_shot:
            self.stage = (self.stage + 1) % len(self._chain)

    def _complete(self, common: StateDict) -> StateDict:
        """Return the model with these layers; earlier layers stay as the clients received them."""
        average = self.mean
        state = self.result(FlatState(self.start.parameters, average.statistics, average.counters))
        return state | {name: value.to(state[name]) for name, value in common.items()}


class FrozenLayers(ClientCallback):
    """Keeps the layers that are already common unchanged while a client trains the others."""

    def frozen(self, module: nn.Module) -> list[str]:
        """Return the parameters of the layers before the stage of this round."""
        layers = read_chain(module)[: int(self.round.broadcast["stage"])]
        return [name for layer in layers for name in layer.tensors]
