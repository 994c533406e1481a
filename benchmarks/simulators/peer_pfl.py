"""Apple pfl: FederatedAveraging on a SimulatedBackend, with its own central evaluation callback.

That callback evaluates the start instead of the first round, which is the warm-up, so the first round has no accuracy.
"""

from collections.abc import Iterator

import torch
from contest import EVALUATION_BATCH, Contest
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from turns import Turns


class Net(nn.Module):
    """The network, with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.net(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        hits = (self.net(images).argmax(dim=1) == labels).sum().item()
        return {"accuracy": Weighted(hits, len(labels))}


class TakeTurns(TrainingProcessCallback):
    """Waits for its turn before every round, and remembers the accuracy of the last round."""

    def __init__(self, turns: Turns, rounds: int) -> None:
        self.turns, self.rounds = turns, rounds
        self.accuracy: float | None = None

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.turns.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        if central_iteration > 0:
            values = aggregate_metrics.to_simple_dict()
            self.accuracy = next(value for name, value in values.items() if "Central val | accuracy" in name)
        if central_iteration + 1 < self.rounds:
            self.turns.wait(self.accuracy)
        return False, Metrics()


def planned_users(contest: Contest) -> Iterator[int]:
    """Yield the positions in the plan, client by client and round by round."""
    yield from range(contest.cohorts.numel())


def main() -> None:
    turns = Turns("pfl")
    contest = turns.contest()
    net = contest.make_net()
    orders = contest.orders.flatten(0, 1)
    users = planned_users(contest)

    def make_dataset(user: int) -> Dataset:
        order = orders[user]
        return Dataset((contest.images.index_select(0, order), contest.labels.index_select(0, order)))

    training_data = FederatedDataset(make_dataset, lambda: next(users))
    model = Net(net)
    evaluation = NNEvalHyperParams(local_batch_size=EVALUATION_BATCH)
    take_turns = TakeTurns(turns, contest.rounds)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=contest.rounds,
            evaluation_frequency=contest.rounds,  # for clients; the callback evaluates the global model
            train_cohort_size=contest.cohorts.shape[1],
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data, training_data),
        model=PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=contest.learning_rate, local_batch_size=contest.batch_size
        ),
        model_eval_params=evaluation,
        callbacks=[
            CentralEvaluationCallback(Dataset((contest.test_images, contest.test_labels)), evaluation),
            take_turns,
        ],
    )
    turns.finish(take_turns.accuracy, net)


if __name__ == "__main__":
    main()
