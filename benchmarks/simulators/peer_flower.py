"""Flower: its FedAvg on its simulation runtime with Ray, with one worker per thread."""

from collections.abc import Iterable

from contest import Contest, accuracy
from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns


class PlannedFedAvg(FedAvg):
    """Flower's FedAvg, which tells the nodes that it samples which clients of the plan they are."""

    def __init__(self, contest: Contest, contest_file: str) -> None:
        clients, cohort = len(contest.clients), contest.cohorts.shape[1]
        super().__init__(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
        )
        self.contest_file = contest_file

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        for position, message in enumerate(messages):
            planned = {"contest": self.contest_file, "round": server_round - 1, "position": position}
            content = RecordDict({"arrays": arrays, "config": ConfigRecord(planned)})
            yield Message(content=content, message_type="train", dst_node_id=message.metadata.dst_node_id)


def main() -> None:
    turns = Turns("flwr", "ray")
    contest = turns.contest()
    net = contest.make_net()
    server_app = ServerApp()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        if server_round == 0:  # Flower also evaluates the start
            turns.wait()
            return MetricRecord()
        net.load_state_dict(arrays.to_torch_state_dict())
        reached = accuracy(net, contest)
        if server_round < contest.rounds:
            turns.wait(reached)
        else:
            turns.finish(reached, net)
        return MetricRecord({"accuracy": reached})

    @server_app.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = PlannedFedAvg(contest, str(turns.contest_file.resolve()))
        strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=contest.rounds, evaluate_fn=evaluate)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(contest.clients),
        backend_config={
            "init_args": {"num_cpus": contest.threads, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
