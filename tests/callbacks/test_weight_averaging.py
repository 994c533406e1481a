"""Lightning's callbacks that average weights work on the rounds of a server."""

import pytest
import torch
from pytorch_lightning.callbacks import StochasticWeightAveraging, WeightAveraging

from fl_lightning.callbacks import RoundCallback
from tests.toys import Net, federate, identical


class Rounds(RoundCallback):
    """Keeps the state that each round starts from."""

    def __init__(self) -> None:
        self.starts: list[dict] = []

    def on_round_start(self, trainer, pl_module, round, clients):
        self.starts.append(round.start)


def test_stochastic_weight_averaging_trains_no_further_round_for_batch_norm():
    rounds = Rounds()
    averaging = StochasticWeightAveraging(0.1, swa_epoch_start=1)
    _, trainer = federate(Net(batch_norm=True), callbacks=[rounds, averaging], rounds=3)
    assert trainer.current_epoch == 3
    assert len(rounds.starts) == 3


def test_stochastic_weight_averaging_averages_weights_and_statistics_of_the_same_rounds():
    rounds = Rounds()
    averaging = StochasticWeightAveraging(0.1, swa_epoch_start=2)
    federated, _ = federate(Net(batch_norm=True), callbacks=[rounds, averaging], rounds=4)
    for name, value in federated.state_dict().items():
        if value.is_floating_point():  # Lightning averages the models at the starts of epochs
            mean = torch.stack([start[name].double() for start in rounds.starts[1:]]).mean(0)
            torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [lambda: StochasticWeightAveraging(0.1, swa_epoch_start=1), WeightAveraging])
def test_a_resumed_run_ends_with_the_same_average(kind, tmp_path):
    def run(rounds, folder, **options):
        torch.manual_seed(0)
        folders = {"enable_checkpointing": True, "default_root_dir": tmp_path / folder}
        federated, _ = federate(Net(batch_norm=True), callbacks=[kind()], rounds=rounds, **folders, **options)
        return dict(federated.state_dict())

    undisturbed = run(4, "whole")
    run(2, "parts")
    resumed = run(4, "parts", ckpt_path=tmp_path / "parts" / "checkpoints" / "last.ckpt")
    assert identical(resumed, undisturbed)
