"""fluke: its FedAVG with its own loaders over tensors and its own evaluator."""

from collections.abc import Iterator, Sequence
from typing import Any

from contest import EVALUATION_BATCH, Contest
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver, ServerObserver
from torch.nn import CrossEntropyLoss
from turns import Turns


class PlannedLoader(FastDataLoader):
    """fluke's loader, which shuffles the samples according to the plan."""

    def __init__(self, contest: Contest, client: int) -> None:
        samples = contest.clients[client]
        super().__init__(contest.images[samples], contest.labels[samples], num_labels=10, batch_size=contest.batch_size)
        self.contest = contest
        self.plan = [
            contest.orders[number, cohort.index(client)]
            for number, cohort in enumerate(contest.cohorts.tolist())
            if client in cohort
        ]
        self.used = 0

    def __iter__(self) -> Iterator:
        order = self.plan[self.used]
        self.used += 1
        self.tensors = (self.contest.images.index_select(0, order), self.contest.labels.index_select(0, order))
        return super().__iter__()


class PlannedServer(Server):
    """fluke's server, which selects the clients of the plan."""

    plan: Iterator[list[int]]

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:
        return [self.clients[client] for client in next(self.plan)]


class PlannedFedAVG(FedAVG):
    """fluke's FedAVG with the planned server."""

    def get_server_class(self) -> type[Server]:
        return PlannedServer


class TakeTurns(FederationObserver, ServerObserver):
    """Waits for its turn before every round, and remembers the accuracy of the last round."""

    def __init__(self, turns: Turns, contest: Contest, net: Any) -> None:
        self.turns, self.rounds, self.net = turns, contest.rounds, net
        self.accuracy: float | None = None

    def start_round(self, round: int, global_model: Any) -> None:
        self.turns.wait(self.accuracy)

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **kwargs: Any) -> None:
        self.accuracy = evals["accuracy"]

    def end_round(self, round: int) -> None:
        if round == self.rounds:
            self.turns.finish(self.accuracy, self.net)


def main() -> None:
    turns = Turns("fluke-fl")
    contest = turns.contest()
    net = contest.make_net()
    environment = FlukeENV()
    environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    clients = len(contest.clients)
    data = DummyDataContainer(
        [PlannedLoader(contest, client) for client in range(clients)],
        [None] * clients,
        FastDataLoader(contest.test_images, contest.test_labels, num_labels=10, batch_size=EVALUATION_BATCH),
        num_classes=10,
    )
    algorithm = PlannedFedAVG(
        clients,
        DataSplitter(data),
        DDict(
            model=net,
            client=DDict(
                batch_size=contest.batch_size,
                local_epochs=1,
                loss=CrossEntropyLoss,
                optimizer=DDict(name="SGD", lr=contest.learning_rate),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            ),
            server=DDict(weighted=True),
        ),
    )
    algorithm.server.plan = iter(contest.cohorts.tolist())
    algorithm.set_callbacks([TakeTurns(turns, contest, net)])
    algorithm.run(contest.rounds, contest.cohorts.shape[1] / clients)


if __name__ == "__main__":
    main()
