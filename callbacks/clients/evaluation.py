"""Evaluation of each client's model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning._lightning.client_module import client_copy
from fl_lightning._lightning.delegation import with_loaders
from fl_lightning._lightning.names import LightningDataModule, LightningModule, Trainer
from fl_lightning._lightning.quiet import without_announcements
from fl_lightning._lightning.trainer import TrainerTemplate
from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.core.distributed import gather_objects
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.metric_names import smaller_is_better
from fl_lightning.core.randomness import preserved_generators
from fl_lightning.core.round import Round
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule

#: the data that clients' models are evaluated on
Samples = Literal["validation", "own"]


class ClientEvaluation(RoundCallback):
    """Evaluates every client's own model: the served model, overridden by the client's own entries.

    Logs ``clients/<metric>_mean``, ``_std`` and ``_worst`` (the mean of the worst tenth) over the clients.

    Args:
        every_n_rounds: how often to evaluate; each time takes one validation per client.
        samples: ``validation`` evaluates on the validation data; clients then differ only in the entries that an
            algorithm keeps for each, as FedBN, FedDNA and Ditto do. ``own`` evaluates on the samples that the client
            trains on, which shows which clients the global model serves badly.
    """

    def __init__(self, every_n_rounds: int = 1, samples: Samples = "validation") -> None:
        check_number("every_n_rounds", every_n_rounds, at_least=1)
        if samples not in ("validation", "own"):
            raise MisconfigurationError(f"samples={samples!r}: set it to validation or own")
        self.every_n_rounds = every_n_rounds
        self.samples = samples

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Evaluate all clients, divided among the ranks."""
        if (round.number + 1) % self.every_n_rounds:
            return
        clients = range(trainer.datamodule.num_clients)  # type: ignore[attr-defined]
        module = pl_module.module
        assert isinstance(module, LightningModule)
        evaluated = pl_module.server.training.evaluate(clients, module, round, self.samples)
        if evaluated is None:
            evaluated = evaluate_clients(trainer, clients, partial(self._evaluate, pl_module=pl_module, round=round))
        if evaluated:
            log_round(trainer, spread_of([evaluated[client] for client in clients if client in evaluated]))

    def _evaluate(self, client: int, evaluator: Trainer, pl_module: FederatedModule, round: Round) -> dict[str, float]:
        module, server = pl_module.module, pl_module.server
        assert isinstance(module, LightningModule)
        own = {**server.aggregator.personal_state(client), **server.client.personal_model(client)}
        data: Any = pl_module.trainer.datamodule  # type: ignore[attr-defined]
        return client_metrics(
            evaluator, module, own, data, client, round.number, self.samples, server.client.batch_size
        )


def evaluate_clients(
    trainer: Trainer, clients: Sequence[int], evaluate: Callable[[int, Trainer], dict[str, float]]
) -> dict[int, dict[str, float]]:
    """Evaluate clients, divided among the ranks, and return every client's metrics on every rank.

    Args:
        trainer: the server's Trainer.
        clients: the clients to evaluate.
        evaluate: evaluates one client, with a Trainer that has not run yet.
    """
    template = TrainerTemplate(trainer.lightning_module.device)
    results = []
    for client in clients[trainer.global_rank :: trainer.world_size]:
        with preserved_generators(), without_announcements():
            results.append((client, evaluate(client, template.copy())))
    return dict(gather_objects(results, trainer.lightning_module.device))


def client_metrics(
    evaluator: Trainer,
    module: LightningModule,
    own: Mapping[str, Tensor],
    data: FederatedDataModule,
    client: int,
    round: int,
    samples: Samples,
    batch_size: int | None,
) -> dict[str, float]:
    """Evaluate one client's own model.

    Args:
        evaluator: a Trainer that has not run yet.
        module: the served model, which is not changed.
        own: the entries in which the client's model differs from it.
        data: the data to evaluate on.
        client: the client's number.
        round: the round's number; if clients redraw, it determines their samples.
        samples: whether to evaluate on the validation data or on the client's own samples.
        batch_size: samples per batch of the client's own samples; by default, the batch size of the source's loader.
    """
    personal = client_copy(module)
    personal.load_state_dict({**module.state_dict(), **own})
    if samples == "own":
        loader = data.client_loader(client, round, batch_size, keep_last=True)
    else:
        loader = data.validation_loaders()
    metrics = validation_metrics(evaluator, personal, data.source, loader)
    if not metrics:
        raise MisconfigurationError(
            f"ClientEvaluation found no metrics: give {type(data.source).__name__} validation data, and log metrics"
            f" in {type(module).__name__}.validation_step"
        )
    return metrics


def validation_metrics(
    evaluator: Trainer, module: LightningModule, source: LightningDataModule, loader: Any
) -> dict[str, float]:
    """Return what a module's ``validation_step`` logs on a loader. Batches pass through the source's hooks."""
    data = with_loaders(source, validation=loader)
    per_loader = evaluator.validate(module, datamodule=data, verbose=False)
    return {name: float(value) for metrics in per_loader for name, value in metrics.items()}


def spread_of(results: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean, the standard deviation and the mean of the worst tenth, for each metric."""
    spread = {}
    for name in results[0]:
        values = torch.tensor([metrics[name] for metrics in results], dtype=torch.float64)
        worst = values.sort(descending=smaller_is_better(name)).values[: max(len(values) // 10, 1)]
        label = f"clients/{name.replace('/', '_')}"
        spread[f"{label}_mean"] = values.mean().item()
        spread[f"{label}_std"] = values.std(correction=0).item()
        spread[f"{label}_worst"] = worst.mean().item()
    return spread
