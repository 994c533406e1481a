"""The loss of the global model on the clients' training data."""

from collections.abc import Sequence
from typing import Any, Literal

from fl_lightning._lightning.client_module import client_copy
from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.clients.evaluation import evaluate_clients, validation_metrics
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.core.distributed import gather_objects
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.round import Round
from fl_lightning.core.update import LostClient
from fl_lightning.module import FederatedModule


class GlobalTrainingLoss(RoundCallback):
    """Logs ``train/global_loss``: F(w) = Σ D_i / D · F_i(w) after the round, where w is the served model.

    Wu, Wang. Fast-Convergent Federated Learning With Adaptive Weighting (FedAdp). 2021, eq. 1, figures 5 and 7. F_i is
    the mean loss of ``validation_step`` on the D_i training samples of client i, without augmentation.

    ``train/loss``, which every run logs, is the mean along the clients' local steps instead. It is much smaller if
    clients have few classes, because a client learns within a few steps to predict only these.

    Args:
        clients: ``all`` takes the sum over all clients; ``cohort`` takes it over the clients that took part in the
            round and were not lost. A round without clients logs nothing.
        every_n_rounds: how often to evaluate; each time takes one pass over the clients' samples, without gradients.
        batch_size: samples per batch.
        metric: name under which ``validation_step`` logs the loss; by default, the only name with ``loss`` in it.
    """

    def __init__(
        self,
        clients: Literal["all", "cohort"] = "all",
        every_n_rounds: int = 1,
        batch_size: int = 512,
        metric: str | None = None,
    ) -> None:
        if clients not in ("all", "cohort"):
            raise MisconfigurationError(f"clients={clients!r}: set clients of GlobalTrainingLoss to all or cohort")
        for name, value in (("every_n_rounds", every_n_rounds), ("batch_size", batch_size)):
            check_number(name, value, at_least=1, setting=f"{name} of GlobalTrainingLoss")
        self.clients = clients
        self.every_n_rounds = every_n_rounds
        self.batch_size = batch_size
        self.metric = metric
        #: the clients of this rank that the round has lost
        self._lost: list[int] = []

    def on_round_start(
        self, trainer: Trainer, pl_module: FederatedModule, round: Round, clients: Sequence[int]
    ) -> None:
        """Forget the clients that earlier rounds have lost."""
        self._lost.clear()

    def on_client_lost(self, trainer: Trainer, pl_module: FederatedModule, round: Round, lost: LostClient) -> None:
        """Note a client that does not take part in the round."""
        self._lost.append(lost.client)

    def on_round_end(self, trainer: Trainer, pl_module: FederatedModule, round: Round, aggregate: Aggregate) -> None:
        """Evaluate the served model on the samples of every client, divided among the ranks."""
        if (round.number + 1) % self.every_n_rounds:
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        module = pl_module.module
        assert isinstance(module, LightningModule)
        served = client_copy(module)

        def evaluate(client: int, evaluator: Trainer) -> dict[str, float]:
            loader = data.client_loader(client, round.number, self.batch_size, keep_last=True)
            return validation_metrics(evaluator, served, data.source, loader)

        clients: Sequence[int] = range(data.num_clients)
        if self.clients == "cohort":
            lost = gather_objects(self._lost, module.device)
            clients = [client for client in data.cohort(round.number) if client not in lost]
        if not clients:
            return
        evaluated = evaluate_clients(trainer, clients, evaluate)
        sizes = {client: data.num_samples(client, round.number) for client in sorted(clients)}
        loss = sum(size * self._loss(evaluated[client], module) for client, size in sizes.items())
        log_round(trainer, {"train/global_loss": loss / sum(sizes.values())})

    def _loss(self, metrics: dict[str, float], module: LightningModule) -> float:
        """Return the loss among the metrics of a client."""
        names = [name for name in metrics if name == self.metric or (self.metric is None and "loss" in name.lower())]
        if len(names) != 1:
            wanted = "one name with loss in it" if self.metric is None else f"metric={self.metric}"
            raise MisconfigurationError(
                f"GlobalTrainingLoss looks for {wanted}, but {type(module).__name__}.validation_step logs"
                f" {', '.join(metrics) or 'nothing'}: set metric of GlobalTrainingLoss to the name of the loss"
            )
        return metrics[names[0]]
