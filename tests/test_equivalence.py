"""A federation of one client gives the same result as plain Lightning, to the last bit."""

import torch
from pytorch_lightning import seed_everything

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.randomness import seed_for, seed_global_generators
from fl_lightning.data import IID
from tests.toys import Blobs, Net, federate, identical, quiet_trainer


class SameBatches:
    """Yields the batches of the only client: round by round, or epoch by epoch within one round."""

    def __init__(self, rounds_are_epochs: bool) -> None:
        self.data = FederatedDataModule(Blobs(), partition=IID(1))
        self.data.setup("fit")
        self.rounds_are_epochs = rounds_are_epochs
        self.epoch = 0

    @property
    def sampler(self):
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        round_, epoch = (self.epoch, 0) if self.rounds_are_epochs else (0, self.epoch)
        loader = self.data.client_loader(0, round_)
        loader.batch_sampler.set_epoch(epoch)
        yield from loader

    def __len__(self) -> int:
        return len(self.data.client_loader(0, 0))


def new_net(**kwargs) -> Net:
    seed_everything(5, verbose=False)
    return Net(**kwargs)


def test_rounds_of_one_client_equal_epochs_of_a_plain_run():
    federated, _ = federate(new_net(batch_norm=True), partition=IID(1), rounds=4)
    plain = new_net(batch_norm=True)
    quiet_trainer(max_epochs=4).fit(plain, SameBatches(rounds_are_epochs=True))
    assert identical(dict(federated.state_dict()), dict(plain.state_dict()))


def test_local_epochs_with_momentum_and_dropout_equal_epochs_of_a_plain_run():
    options = {"momentum": 0.9, "dropout": 0.3, "batch_norm": True}
    server = FederatedServer(client=LocalTraining(epochs=3))
    federated, _ = federate(new_net(**options), partition=IID(1), server=server, rounds=1)
    plain = new_net(**options)
    trainer = quiet_trainer(max_epochs=3)
    seed_global_generators(seed_for("client", 5, 0, 0))
    data = SameBatches(rounds_are_epochs=False)
    data.data.seed = 5
    trainer.fit(plain, data)
    assert identical(dict(federated.state_dict()), dict(plain.state_dict()))


def test_training_changes_the_model():
    before = {name: value.clone() for name, value in new_net().state_dict().items()}
    federated, _ = federate(new_net(), partition=IID(1), rounds=1)
    assert not torch.equal(federated.state_dict()["layers.0.weight"], before["layers.0.weight"])
