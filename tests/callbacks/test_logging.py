"""Only values that the module itself logs count as its metrics."""

import torch
from pytorch_lightning.loggers import TensorBoardLogger

from fl_lightning.aggregation import Aggregate, FedAvg
from fl_lightning.callbacks import FederatedServer, NormDiagnostics, RoundCallback, RunSummary, log_round
from tests.callbacks.test_layout import hparams
from tests.runs import scalars
from tests.toys import Net, federate


class FedFoo(FedAvg):
    """A user's aggregator that logs something."""

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.mean), metrics={"fedfoo/x": torch.tensor(7.0)})


class Watch(RoundCallback):
    """A user's callback that logs something."""

    def on_round_end(self, trainer, pl_module, round, aggregate):
        log_round(trainer, {"watch/round": float(round.number)})


class Odd(Net):
    """A user's module whose validation metrics have unusual names."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("norms/of_the_user", 1.0)


def test_only_what_the_module_logs_in_validation_is_a_validation_metric(tmp_path, capsys):
    federate(
        Odd(),
        server=FederatedServer(FedFoo()),
        callbacks=[Watch(), NormDiagnostics(), RunSummary()],
        logger=TensorBoardLogger(tmp_path, "run", version=0),
        rounds=2,
    )
    run = tmp_path / "run" / "version_0"
    logged = scalars(run)
    assert [value for _, value in logged["fedfoo/x"]] == [7.0, 7.0]
    assert [value for _, value in logged["watch/round"]] == [0.0, 1.0]
    assert "norms/all/N" in logged
    tags = [info.name.tag for info in hparams(run, "_hparams_/experiment").experiment.metric_infos]
    assert tags == ["norms/of_the_user", "val_accuracy", "val_loss", "train/loss"]
    printed = capsys.readouterr().out
    assert "norms/of_the_user" in printed
    assert "fedfoo" not in printed
    assert "norms/all" not in printed
