"""FedLab: its standalone pipeline with its FedAvg server handler and serial client trainer."""

from collections.abc import Iterator

from contest import EVALUATION_BATCH, Contest
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.functional import evaluate
from torch import Tensor
from torch.nn import CrossEntropyLoss
from torch.utils.data import DataLoader, TensorDataset
from turns import Turns


class PlannedBatches:
    """A loader over indexed batches, which FedLab accepts in place of a DataLoader."""

    def __init__(self, contest: Contest, order: Tensor) -> None:
        self.contest, self.order = contest, order

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.order.split(self.contest.batch_size):
            yield self.contest.images.index_select(0, batch), self.contest.labels.index_select(0, batch)


class PlannedClients(FedDataset):
    """The clients of the plan."""

    def __init__(self, contest: Contest) -> None:
        super().__init__()
        self.contest = contest
        self.num = len(contest.clients)
        self.round = 0

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> PlannedBatches:
        position = self.contest.cohorts[self.round].tolist().index(id)
        return PlannedBatches(self.contest, self.contest.orders[self.round, position])


class Server(FedAvgServerHandler):
    """FedLab's FedAvg, which selects the clients of the plan."""

    cohorts: list[list[int]]

    def sample_clients(self) -> list[int]:
        return self.cohorts[self.round]


class Pipeline(StandalonePipeline):
    """FedLab's loop over rounds, with FedLab's own evaluation."""

    def __init__(self, server: Server, trainer: FedAvgSerialClientTrainer, turns: Turns, contest: Contest) -> None:
        super().__init__(server, trainer)
        self.turns = turns
        self.accuracy = 0.0
        self.criterion = CrossEntropyLoss()
        self.loader = DataLoader(TensorDataset(contest.test_images, contest.test_labels), batch_size=EVALUATION_BATCH)

    def evaluate(self) -> None:
        _, self.accuracy = evaluate(self.handler.model, self.criterion, self.loader)
        self.trainer.dataset.round = self.handler.round
        if not self.handler.if_stop:
            self.turns.wait(self.accuracy)


def main() -> None:
    turns = Turns("fedlab")
    contest = turns.contest()
    net = contest.make_net()
    clients = PlannedClients(contest)
    trainer = FedAvgSerialClientTrainer(net, len(contest.clients))
    trainer.setup_dataset(clients)
    trainer.setup_optim(epochs=1, batch_size=contest.batch_size, lr=contest.learning_rate)
    server = Server(net, contest.rounds, contest.cohorts.shape[1] / len(contest.clients))
    server.cohorts = contest.cohorts.tolist()
    pipeline = Pipeline(server, trainer, turns, contest)
    turns.wait()
    pipeline.main()
    turns.finish(pipeline.accuracy, server.model)


if __name__ == "__main__":
    main()
