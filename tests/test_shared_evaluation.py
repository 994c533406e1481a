"""Two processes share validation and test batches and get the metrics of one, or evaluate everything and say why."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning import Callback, LightningDataModule
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from torch.nn import functional
from torch.utils.data import DataLoader, Subset
from torchmetrics import MeanMetric, Metric, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.utilities import dim_zero_cat

from fl_lightning import FederatedDataModule, FederatedModule
from fl_lightning.callbacks import FederatedServer
from fl_lightning.data import IID
from fl_lightning.models import Classifier, FullyConnected
from tests.toys import Blobs, Net, blobs, federate, quiet_trainer


class Data(Blobs):
    """Batches of the given sizes per loader: 110 samples in batches of 25 are four whole batches and one of ten."""

    def __init__(self, samples=(110,), batch_size: int = 25, as_tensors: bool = True) -> None:
        super().__init__()
        self.sizes = samples
        self.size = batch_size
        self.as_tensors = as_tensors

    def val_dataloader(self):
        data = [Subset(blobs(), range(samples)) for samples in self.sizes]
        if not self.as_tensors:
            data = [list(part) for part in data]
        loaders = [DataLoader(part, batch_size=self.size) for part in data]
        return loaders if len(loaders) > 1 else loaders[0]


class Recording(Net):
    """Writes down which batches a process evaluates, into a file of the process."""

    folder: Path

    def record(self, batch_idx: int, dataloader_idx: int, batch) -> None:
        if self.trainer.callbacks:  # a trial has none
            with open(self.folder / f"batches{self.global_rank}", "a") as file:
                file.write(json.dumps([dataloader_idx, batch_idx, len(batch[1])]) + "\n")


class FirstDifference(Metric):
    """A metric that depends on the order of the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("losses", [], dist_reduce_fx="cat")

    def update(self, loss):
        self.losses.append(loss)

    def compute(self):
        losses = dim_zero_cat(self.losses)
        return losses[1] - losses[0]


class LogsEverything(Recording):
    """Logs values of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(4, average="micro")
        self.auroc = MulticlassAUROC(4)
        self.late_auroc = MulticlassAUROC(4)
        self.seen = SumMetric()
        self.logged_late = MeanMetric()
        self.order = FirstDifference()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.record(batch_idx, dataloader_idx, batch)
        inputs, labels = batch
        logits = self(inputs)
        loss = functional.cross_entropy(logits, labels)
        self.log("mean", loss)
        self.log("unweighted_mean", loss, batch_size=1)
        self.log("sum", loss, reduce_fx="sum")
        self.log("min", loss, reduce_fx="min", sync_dist=True)
        self.log("max", loss, reduce_fx="max", rank_zero_only=True)
        self.log("batch_idx", float(batch_idx), batch_size=1)
        if batch_idx == 1:
            self.log("only_in_batch_1", loss)
            self.log("max_in_batch_1", -loss, reduce_fx="max")
            self.late_auroc.update(logits, labels)
            self.log("auroc_in_batch_1", self.late_auroc)
        self.logged_late.update(loss)
        if batch_idx == 3:
            self.log("logged_in_batch_3", self.logged_late)
        self.order.update(loss)
        self.log("order", self.order)
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy)
        self.auroc.update(logits, labels)
        self.log("auroc", self.auroc)
        self.seen.update(torch.tensor(len(labels)))
        self.log("samples", self.seen)


class CollectsOutputs(Recording):
    def __init__(self) -> None:
        super().__init__()
        self.outputs = []
        self.seen = SumMetric()

    def validation_step(self, batch, batch_idx):
        self.record(batch_idx, 0, batch)
        self.outputs.append(self(batch[0]).argmax(1) == batch[1])
        self.seen.update(torch.tensor(len(batch[1])))
        self.log("errors", (~self.outputs[-1]).float().sum(), reduce_fx="sum", sync_dist=True)

    def on_validation_epoch_end(self):
        self.log("accuracy", torch.cat(self.outputs).float().mean(), sync_dist=True)
        self.log("samples", self.seen.compute())
        self.outputs.clear()
        self.seen.reset()


class GathersInStep(Recording):
    def validation_step(self, batch, batch_idx):
        self.record(batch_idx, 0, batch)
        self.log("gathered", self.all_gather(self(batch[0])).mean(), batch_size=len(batch[1]))


class KeepsMetrics(Callback):
    """Writes down what callbacks see after an evaluation, in every process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer, pl_module):
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        (self.folder / f"metrics{trainer.global_rank}").write_text(json.dumps(metrics))

    on_test_end = on_validation_end


@dataclass
class Evaluation:
    """What an evaluation returned, what callbacks saw in each process, the batches of each process, and the lines."""

    metrics: dict[str, float]
    seen: list[dict[str, float]]
    batches: list[list[list[int]]]
    lines: list[str]


def evaluate(folder: Path, module, source: LightningDataModule, processes: int, stage: str = "validate", **flags):
    """Evaluate a module in one process or in forked ones."""
    folder = folder / f"{stage}{processes}"
    folder.mkdir()
    module.folder = folder
    distributed = {"strategy": "ddp_fork", "devices": processes} if processes > 1 else {"devices": 1}
    trainer = quiet_trainer(callbacks=[FederatedServer(), KeepsMetrics(folder)], **distributed, **flags)
    data = FederatedDataModule(source, partition=IID(4))

    @rank_zero_only
    def keep_line(line: str) -> None:
        with open(folder / "lines", "a") as file:
            file.write(line + "\n")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_lightning._lightning.evaluation_loop.rank_zero_info", keep_line)
        torch.set_num_threads(1)
        per_loader = getattr(trainer, stage)(FederatedModule(module), datamodule=data, verbose=False)
    rows = [folder / f"batches{rank}" for rank in range(processes)]
    return Evaluation(
        {name: value for metrics in per_loader for name, value in metrics.items()},
        [json.loads((folder / f"metrics{rank}").read_text()) for rank in range(processes)],
        [[json.loads(row) for row in path.read_text().splitlines()] if path.exists() else [] for path in rows],
        (folder / "lines").read_text().splitlines() if (folder / "lines").exists() else [],
    )


def both(folder: Path, make_module, source: LightningDataModule, **options) -> SimpleNamespace:
    """Evaluate the same module in one process and in two."""
    evaluations = []
    for processes in (1, 2):
        torch.manual_seed(0)
        evaluations.append(evaluate(folder, make_module(), source, processes, **options))
    return SimpleNamespace(one=evaluations[0], two=evaluations[1])


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """Three batches in one process and two, the last of ten samples, in the other."""
    return both(tmp_path_factory.mktemp("ragged"), LogsEverything, Data())


@pytest.mark.parametrize(
    "name",
    [
        *("mean", "unweighted_mean", "sum", "min", "max", "batch_idx", "accuracy", "auroc", "samples"),
        *("only_in_batch_1", "max_in_batch_1", "auroc_in_batch_1", "logged_in_batch_3", "order"),
    ],
)
def test_two_processes_that_share_the_batches_log_what_one_logs(ragged, name):
    assert ragged.two.metrics[name] == pytest.approx(ragged.one.metrics[name], rel=1e-6, abs=1e-6)


def test_processes_evaluate_every_batch_once_under_its_own_number(ragged):
    assert ragged.two.batches == [[[0, 0, 25], [0, 2, 25], [0, 4, 10]], [[0, 1, 25], [0, 3, 25]]]
    assert ragged.two.lines == []


def test_callbacks_see_the_same_values_in_all_processes(ragged):
    assert ragged.two.seen[0] == ragged.two.seen[1]
    assert ragged.two.seen[0].keys() == ragged.one.seen[0].keys()


def test_the_metrics_are_those_of_all_samples(ragged):
    """The expected numbers are computed without a Trainer."""
    torch.manual_seed(0)
    module = LogsEverything().eval()
    inputs, labels = (tensor[:110] for tensor in blobs().tensors)
    logits = module(inputs).detach()
    parts = [functional.cross_entropy(*part) for part in zip(logits.split(25), labels.split(25), strict=True)]
    metrics = ragged.two.metrics
    assert metrics["mean"] == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-6)
    assert metrics["unweighted_mean"] == pytest.approx((sum(parts) / 5).item(), rel=1e-6)
    assert metrics["sum"] == pytest.approx(sum(parts).item(), rel=1e-6)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item(), rel=1e-6)
    assert metrics["batch_idx"] == 2
    assert metrics["samples"] == 110
    assert metrics["only_in_batch_1"] == pytest.approx(parts[1].item(), rel=1e-6)


@pytest.mark.parametrize("as_tensors", [True, False], ids=["tensors", "other data"])
def test_several_loaders_are_shared_one_after_the_other(tmp_path, as_tensors):
    result = both(tmp_path, LogsEverything, Data((110, 50, 75), as_tensors=as_tensors), limit_val_batches=4)
    assert result.two.metrics.keys() == result.one.metrics.keys()
    assert result.two.metrics == pytest.approx(result.one.metrics, rel=1e-6, abs=1e-6)
    assert [batch[:2] for batch in result.two.batches[1]] == [[0, 1], [0, 3], [1, 1], [2, 1]]
    assert result.two.lines == []


def test_a_module_that_collects_outputs_evaluates_everything_everywhere(tmp_path):
    result = both(tmp_path, CollectsOutputs, Data())
    assert result.two.metrics == pytest.approx(result.one.metrics, rel=1e-6, abs=1e-6)
    assert result.two.seen[0] == result.two.seen[1]
    assert result.two.metrics["samples"] == 110
    assert result.two.batches[0] == result.two.batches[1] == result.one.batches[0]
    assert result.two.lines == [
        "Every process evaluates all validation data, because CollectsOutputs.on_validation_epoch_end may use what the"
        " steps on all batches have collected"
    ]


def test_fewer_batches_than_processes_are_evaluated_everywhere(tmp_path):
    result = both(tmp_path, LogsEverything, Data((110, 20)))
    assert result.two.metrics == pytest.approx(result.one.metrics, rel=1e-6, abs=1e-6)
    assert result.two.lines == [
        "Every process evaluates all validation data, because a loader has 1 batches for 2 processes"
    ]


def test_a_step_that_exchanges_something_is_evaluated_everywhere(tmp_path):
    result = both(tmp_path, GathersInStep, Data())
    assert result.two.metrics == pytest.approx(result.one.metrics, rel=1e-6, abs=1e-6)
    assert result.two.lines == [
        "Every process evaluates all validation data, because GathersInStep.validation_step exchanges something between"
        " processes"
    ]


def test_a_fit_shares_the_validation_of_every_round_but_not_the_sanity_check(tmp_path):
    module = LogsEverything()
    module.folder = tmp_path
    federate(module, source=Data(), rounds=2, strategy="ddp_fork", devices=2)
    rows = [(tmp_path / f"batches{rank}").read_text().splitlines() for rank in range(2)]
    sanity_check = ["[0, 0, 25]", "[0, 1, 25]"]
    assert rows[0] == sanity_check + 2 * ["[0, 0, 25]", "[0, 2, 25]", "[0, 4, 10]"]
    assert rows[1] == sanity_check + 2 * ["[0, 1, 25]", "[0, 3, 25]"]


def test_the_reason_is_said_once_per_run(tmp_path, capfd):
    module = CollectsOutputs()
    module.folder = tmp_path

    @rank_zero_only
    def say(line: str) -> None:
        print(line, flush=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_lightning._lightning.evaluation_loop.rank_zero_info", say)
        federate(module, source=Data(), rounds=3, strategy="ddp_fork", devices=2)
    assert capfd.readouterr().out.count("Every process evaluates all validation data") == 1


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_the_classifier_is_shared(tmp_path, stage):
    def make():
        return Classifier(FullyConnected(6, hidden=(8,), num_classes=4), num_classes=4, top_k=2)

    result = both(tmp_path, make, Data(), stage=stage)
    assert result.two.metrics == pytest.approx(result.one.metrics, rel=1e-6, abs=1e-6)
    assert result.two.seen[0] == result.two.seen[1]
    assert result.two.lines == []
