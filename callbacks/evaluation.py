"""How well the model serves each client."""

from typing import Literal

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.seed import isolate_rng

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.data import FederatedDataModule
from fl_lightning.distributed import gather_objects
from fl_lightning.local import with_loader
from fl_lightning.module import FederatedModule
from fl_lightning.resident import detached_copy
from fl_lightning.trainers import ResidentStrategy, quick_starts, short_lived_trainer


class ClientEvaluation(RoundCallback):
    """Evaluates every client's own model: the served one with the client's entries in it.

    Logs ``clients/<metric>_mean``, ``_std`` and ``_worst`` (the mean of the worst tenth) over the clients.

    Args:
        every_n_rounds: it takes a validation a client, so one may want it less often.
        samples: ``validation`` evaluates on the validation data; clients differ then only by what an algorithm keeps
            with them, such as FedBN and FedDNA. ``own`` evaluates on the samples that the client trains on: whom the
            global model serves badly.
    """

    def __init__(self, every_n_rounds: int = 1, samples: Literal["validation", "own"] = "validation") -> None:
        if every_n_rounds < 1:
            raise MisconfigurationException(f"every_n_rounds={every_n_rounds}: set it to 1 or more")
        if samples not in ("validation", "own"):
            raise MisconfigurationException(f"samples={samples!r}: set it to validation or own")
        self.every_n_rounds = every_n_rounds
        self.samples = samples

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        """Called when the global model has moved; the ranks share the clients."""
        if (trainer.current_epoch + 1) % self.every_n_rounds:
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        mine = range(trainer.global_rank, data.num_clients, trainer.world_size)
        with isolate_rng(), quick_starts():
            results = [(client, self._evaluate(client, pl_module, data)) for client in mine]
        everyone = [metrics for _, metrics in sorted(gather_objects(results), key=lambda item: item[0])]
        pl_module.server.log_round(pl_module, spread_of(everyone), trainer.current_epoch)

    def _evaluate(self, client: int, pl_module: FederatedModule, data: FederatedDataModule) -> dict[str, float]:
        module = pl_module.module
        assert isinstance(module, LightningModule)
        personal = detached_copy(module)
        personal.load_state_dict({**module.state_dict(), **pl_module.server.aggregator.personal_state(client)})
        trainer = short_lived_trainer(ResidentStrategy(pl_module.device))
        source = with_loader(data.source, None)
        if self.samples == "own":
            loader = data.client_loader(client, pl_module.current_epoch, pl_module.server.client.batch_size)
            source.val_dataloader = lambda: loader  # type: ignore[method-assign]
        (metrics, *_) = trainer.validate(personal, datamodule=source, verbose=False)
        return {name: float(value) for name, value in metrics.items()}


def spread_of(results: list[dict[str, float]]) -> dict[str, float]:
    """Mean, standard deviation and mean of the worst tenth of each metric; of a loss the highest are the worst."""
    spread = {}
    for name in results[0]:
        values = torch.tensor([metrics[name] for metrics in results], dtype=torch.float64)
        worst = values.sort(descending="loss" in name).values[: max(len(values) // 10, 1)]
        label = f"clients/{name.replace('/', '_')}"
        spread[f"{label}_mean"] = values.mean().item()
        spread[f"{label}_std"] = values.std(correction=0).item()
        spread[f"{label}_worst"] = worst.mean().item()
    return spread
