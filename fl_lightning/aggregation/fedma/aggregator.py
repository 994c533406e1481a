"""FedMA: federated matched averaging.

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni. Federated Learning with Matched Averaging. ICLR 2020 (algorithm 1).
https://arxiv.org/abs/2002.06440

Two clients may learn the same unit at different positions, so an average by position mixes units that do not belong
together. FedMA finds out which units do (:mod:`~fl_lightning.aggregation.fedma.matching`). It works layer by layer,
because the inputs of a layer are comparable only once the units of the previous layer are at the same positions.

Units of different layers may have to move together, for example those that a residual connection adds up. They are
found in the graph that ``torch.fx`` traces (:mod:`~fl_lightning.aggregation.fedma.graph`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning._lightning.names import rank_zero_info
from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.fedma.client import StagedLayers
from fl_lightning.aggregation.fedma.matching import Process, match
from fl_lightning.aggregation.fedma.plan import Plan, Stage, read_plan
from fl_lightning.aggregation.split import GatheredAggregator
from fl_lightning.client import ClientCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.plain_types import require_type
from fl_lightning.core.randomness import generator_for
from fl_lightning.core.round import Round
from fl_lightning.core.state import FlatState, StateDict
from fl_lightning.core.widths import resize


class FedMA(GatheredAggregator):
    """Matches the clients' units, one layer per round, and averages the units that belong together.

    A pass over a net of L layers takes L rounds. In stage l, the layers before l are common to all clients and frozen
    during local training. The units of layer l are matched, unless they move together with those of an earlier layer. A
    client that took part continues with its own later layers, whose inputs are permuted in the same way as its units;
    any other client starts from the served model. The last layer is averaged by the clients' class counts, then a new
    pass begins. The model served after each round is complete: the remaining layers of the pass are matched without
    training in between.

    By default, the model keeps its width, and each client's units are matched with the model's units one to one.
    ``sigma``, ``sigma0`` and ``gamma`` then do not change the match. With ``max_width``, a client's unit that resembles
    no other becomes a new unit of the model.

    Units change positions from round to round, so FedMA rejects a server optimiser, which would update each weight from
    its previous value. ``torch.fx`` must be able to trace the model's ``forward``.

    Args:
        sigma: σ, the variance of a client's unit around the common one.
        sigma0: σ0, the variance of the common units around 0.
        gamma: γ, how readily a new unit is created.
        sweeps: how many times every client is matched again with all the others.
        estimate: ``mean`` makes a matched unit the mean of its members, weighted like the clients; ``map`` also shrinks
            it towards 0, by J / (J + 1) with J clients and σ = σ0.
        one_shot: makes every round a whole pass, without training in between.
        max_width: how many units a layer may grow to; wider layers keep their width. By default, no layer grows.
    """

    needs_class_counts = True

    def __init__(
        self,
        sigma: float = 1.0,
        sigma0: float = 1.0,
        gamma: float = 7.0,
        sweeps: int = 5,
        estimate: Literal["mean", "map"] = "mean",
        one_shot: bool = False,
        max_width: int | None = None,
    ) -> None:
        for name, value in (("sigma", sigma), ("sigma0", sigma0), ("gamma", gamma)):
            check_number(name, value, above=0, setting=f"{name} of FedMA")
        check_number("sweeps", sweeps, at_least=0, setting="sweeps of FedMA")
        if estimate not in ("mean", "map"):
            raise MisconfigurationError(f"estimate={estimate!r}: set estimate of FedMA to mean or map")
        if max_width is not None:
            check_number("max_width", max_width, at_least=1, setting="max_width of FedMA")
        self.sigma = sigma
        self.sigma0 = sigma0
        self.gamma = gamma
        self._process = Process(sigma, sigma0, gamma)
        self.sweeps = sweeps
        self.estimate = estimate
        self.one_shot = one_shot
        self.max_width = max_width
        #: l, the layer that is matched next
        self.stage = 0
        #: the clients that continue with layers of their own
        self._holders: list[int] = []
        self._plan = Plan([])

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        if federation.optimizer is not None:
            raise MisconfigurationError(
                "server.optimizer is set, but FedMA's units change positions from round to round, so updating each"
                " weight from its previous value mixes different units: leave server.optimizer out, or use another"
                " aggregator"
            )
        training = federation.local_training
        if self.max_width is not None and training is not None and training.execution != "trainer":
            raise MisconfigurationError(
                f"client.execution={training.execution}, but with max_width={self.max_width} FedMA's model grows:"
                " set client.execution to trainer, or leave max_width out"
            )
        self._read(model)
        for layer, reason in self._plan.anchored.items():
            rank_zero_info(f"FedMA averages the units of {layer} by position, because {reason}.")

    def client_callbacks(self) -> list[ClientCallback]:
        parameters, statistics = (
            [[name for name in stage.tensors if name in part] for stage in self._plan.stages]
            for part in (set(self.layout.parameters), set(self.layout.statistics))
        )
        return [StagedLayers(parameters, statistics, self.one_shot)]

    def broadcast(self) -> dict[str, Tensor]:
        return {"stage": torch.tensor(self.stage)}

    def personal_state(self, client: int) -> StateDict:
        return self.memory.get(client, self.device) or {}

    def resize(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self.max_width is not None:
            resize(model, state)

    def begin_round(self, model: nn.Module, round: Round) -> None:
        super().begin_round(model, round)
        self.layout.shapes = {name: round.start[name].shape for name in self.layout.shapes}
        self._read(model)

    def finish_round(self) -> Aggregate:
        models = [self._tensors(item.state) for item in self.received]
        generator = generator_for("fedma", self.seed, self.round.number)
        widths = list(self._plan.widths)
        common: StateDict = {}
        personal: dict[int, StateDict] = {}
        for number in range(self.stage, len(self._plan.stages)):
            stage = self._plan.stages[number]
            now = number == self.stage or self.one_shot
            # 1 where a client has an entry, 0 where the model grew and the client has no such unit
            everything = torch.ones((), dtype=self.dtype, device=self.device)
            held = [dict.fromkeys(stage.tensors, everything) for _ in models]
            for group in stage.groups:
                places, width = self._match(stage, group, models, widths, generator, grow=now)
                for model, mask, place in zip(models, held, places, strict=True):
                    self._move(group, number, model, mask, place, widths, width)
                widths[group] = width
            common |= self._average(stage, models, held)
            if number == self.stage and not self.one_shot:
                personal = self._own_layers(number + 1, models)
        metrics: dict[str, float | Tensor] = {"fedma/stage": float(self.stage)}
        if self.max_width is not None:
            metrics["fedma/units"] = float(sum(widths))
        self._advance(personal)
        return Aggregate(self._complete(common), metrics=metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "holders": list(self._holders)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.stage = require_type(state_dict["stage"], int, "stage")
        self._holders = list(require_type(state_dict["holders"], list[int], "holders"))

    def _read(self, model: nn.Module) -> None:
        """Read the model's layers and groups, and reject settings that they do not allow."""
        self._plan = plan = read_plan(model, self.layout)
        averaged = next((name for name in self.layout.statistics if plan.parts.get(name)), None)
        if self.estimate == "map" and averaged is not None:
            raise MisconfigurationError(
                f"estimate=map, but {averaged} belongs to the weights before they are shrunk: set estimate of FedMA to"
                " mean, or use a net without running statistics"
            )
        if self.max_width is not None and plan.rigid:
            group, reason = next(iter(plan.rigid.items()))
            layer = next(stage.layer for stage in plan.stages if group in stage.groups)
            raise MisconfigurationError(
                f"max_width={self.max_width}, but {layer} cannot get more units, because {reason}:"
                " leave max_width of FedMA out"
            )

    def _tensors(self, state: FlatState) -> StateDict:
        """Return a client's parameters and statistics by name."""
        layout = self.layout
        return layout.split(layout.parameters, state.parameters) | layout.split(layout.statistics, state.statistics)

    def _match(
        self,
        stage: Stage,
        group: int,
        models: Sequence[StateDict],
        widths: Sequence[int],
        generator: np.random.Generator,
        grow: bool,
    ) -> tuple[list[Tensor], int]:
        """Return the new place of each client's units of a group, and the number of places."""
        parameters = frozenset(self.layout.parameters)
        names = [name for name in self._plan.telling(stage, group) if name in parameters]
        if not names:  # nothing tells the units apart
            return [torch.arange(widths[group], device=self.device)] * len(models), widths[group]
        clients = [self._plan.rows(model, names, group, widths).cpu().double().numpy() for model in models]
        for item, rows in zip(self.received, clients, strict=True):
            if not np.isfinite(rows).all():
                raise MisconfigurationError(
                    f"layer {stage.layer} of client {item.update.client} is not finite, so it cannot be matched:"
                    " lower the clients' learning rate"
                )
        most = max(widths[group], self.max_width or 0) if grow else widths[group]
        places = match(clients, self._process, generator, self.sweeps, max_width=most)
        width = 1 + max(int(place.max()) for place in places)
        return [torch.from_numpy(place).to(self.device) for place in places], width

    def _move(
        self,
        group: int,
        stage: int,
        model: StateDict,
        held: StateDict,
        places: Tensor,
        widths: Sequence[int],
        width: int,
    ) -> None:
        """Move a client's units of a group to their places, and note which entries of this stage it does not have."""
        for name in self._plan.from_stage(stage):
            if name in held and width > len(places):
                present = held[name].expand(model[name].shape)
                held[name] = self._plan.move(name, present, group, places, widths, width)
            model[name] = self._plan.move(name, model[name], group, places, widths, width)

    def _average(self, stage: Stage, models: Sequence[StateDict], held: Sequence[StateDict]) -> StateDict:
        """Average the tensors of a stage: each entry over the clients that have it, the last layer by class."""
        shrunk = {name for group in stage.groups for name in self._plan.telling(stage, group)}
        common = self._average_by_class(stage.head, models) if stage.head else {}
        for name in stage.tensors:
            if name in common:
                continue
            values = [model[name].to(self.dtype) for model in models]
            total, weight, members = (torch.zeros_like(values[0]) for _ in range(3))
            for value, mask, share in zip(values, held, self.weights.tolist(), strict=True):
                total += share * value
                weight += share * mask[name]
                members += mask[name]
            mean = torch.where(weight > 0, total / weight, total)
            if self.estimate == "map" and name in shrunk:  # A / S
                evidence = members / self.sigma
                mean = mean * evidence / (1 / self.sigma0 + evidence)
            common[name] = mean
        return common

    def _average_by_class(self, names: Sequence[str], models: Sequence[StateDict]) -> StateDict:
        """Average the last layer: unit c weights the clients by n_k^c / n^c, or by p_k if no client holds class c.

        All units use p_k if a client reports no class counts or the units are not the classes.
        """
        shapes = [models[0][name].shape for name in names]
        flat = [torch.cat([model[name].reshape(len(model[name]), -1) for name in names], dim=1) for model in models]
        rows = torch.stack([value.to(self.dtype) for value in flat])
        shares = self.weights[:, None].expand(rows.shape[:2])
        counts = [item.update.class_counts for item in self.received]
        known = [count.to(rows) for count in counts if count is not None and len(count) == rows.shape[1]]
        if len(known) == len(models):
            held = torch.stack(known)
            shares = torch.where(held.sum(0) > 0, held / held.sum(0), shares)
        mean = torch.einsum("ku,kud->ud", shares, rows)
        parts = mean.split([shape.numel() // len(mean) for shape in shapes], dim=1)
        return {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}

    def _own_layers(self, stage: int, models: Sequence[StateDict]) -> dict[int, StateDict]:
        """Return each client's own tensors from a stage on, which it continues with in the next round."""
        names = self._plan.from_stage(stage)
        if not names:
            return {}
        return {
            item.update.client: {name: model[name].clone() for name in names}
            for item, model in zip(self.received, models, strict=True)
        }

    def _advance(self, personal: dict[int, StateDict]) -> None:
        """Store the clients' own layers, drop earlier ones, which no longer fit, and advance the stage."""
        for client in self._holders:
            if client not in personal:
                self.memory.put(client, {})
        for client, state in personal.items():
            self.memory.put(client, state)
        self._holders = list(personal)
        if not self.one_shot:
            self.stage = (self.stage + 1) % len(self._plan.stages)

    def _complete(self, common: StateDict) -> StateDict:
        """Return the model with these layers; earlier layers stay as the clients received them."""
        average = self.mean
        state = self.result(FlatState(self.start.parameters, average.statistics, average.counters))
        return state | {name: value.to(state[name]) for name, value in common.items()}
