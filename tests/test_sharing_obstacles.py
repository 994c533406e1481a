"""What speaks against sharing the batches of an evaluation is found before the evaluation, on a copy of the module."""

import random

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
from torchmetrics.regression import PearsonCorrCoef
from torchmetrics.wrappers import Running

from fl_lightning._lightning.sharing import hook_that_sees_batches, metric_without_exact_sum
from fl_lightning._lightning.trial import try_step
from fl_lightning.core.randomness import generator_states
from fl_lightning.models import Classifier, FullyConnected
from tests.toys import Net, blobs, identical, quiet_trainer


def attempt(module, stage: str = "validation") -> str | None:
    return try_step(quiet_trainer(), module, [DataLoader(blobs(), batch_size=25)], stage)


class Step(Net):
    """A validation step that does something besides logging; ``act`` is what it does."""

    def __init__(self) -> None:
        super().__init__(batch_norm=True)
        self.register_buffer("counter", torch.zeros(1))
        self.number = 0
        self.outputs = []
        self.parts = {"predictions": []}
        self.accuracy = MulticlassAccuracy(4)

    def act(self, logits, labels, batch_idx) -> None:
        pass

    def validation_step(self, batch, batch_idx):
        inputs, labels = batch
        logits = self(inputs)
        self.act(logits, labels, batch_idx)
        self.log("loss", functional.cross_entropy(logits, labels))


class Clean(Step):
    def act(self, logits, labels, batch_idx):
        self.accuracy(logits, labels)
        self.log("accuracy", self.accuracy)


class Counts(Step):
    def act(self, logits, labels, batch_idx):
        self.number += len(labels)


class Collects(Step):
    def act(self, logits, labels, batch_idx):
        self.outputs.append(logits)


class CollectsInDictionary(Step):
    def act(self, logits, labels, batch_idx):
        self.parts["predictions"].append(logits)


class ChangesBuffer(Step):
    def act(self, logits, labels, batch_idx):
        self.counter += 1


class TrainsBatchNorm(Step):
    def act(self, logits, labels, batch_idx):
        self.layers[1].train()(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)))


class MakesAttribute(Step):
    def act(self, logits, labels, batch_idx):
        if batch_idx == 1:
            self.seen = labels


class DrawsWithTorch(Step):
    def act(self, logits, labels, batch_idx):
        functional.dropout(logits, training=True)


class DrawsWithPython(Step):
    def act(self, logits, labels, batch_idx):
        random.random()


class Gathers(Step):
    def act(self, logits, labels, batch_idx):
        self.all_gather(logits)


class Waits(Step):
    def act(self, logits, labels, batch_idx):
        self.trainer.strategy.barrier()


class ComputesMetric(Step):
    def act(self, logits, labels, batch_idx):
        self.accuracy.update(logits, labels)
        self.log("so_far", self.accuracy.compute())


class LogsSteps(Step):
    def act(self, logits, labels, batch_idx):
        self.log("each", logits.mean(), on_step=True)


class Fails(Step):
    def act(self, logits, labels, batch_idx):
        raise ValueError("no\nsuch thing")


FINDINGS = {
    Clean: None,
    Counts: "Counts.validation_step changes self.number",
    Collects: "Collects.validation_step changes self.outputs",
    CollectsInDictionary: "CollectsInDictionary.validation_step changes self.parts",
    ChangesBuffer: "ChangesBuffer.validation_step changes self.counter",
    TrainsBatchNorm: "TrainsBatchNorm.validation_step changes self.layers.1.running_mean",
    MakesAttribute: "MakesAttribute.validation_step changes self.seen",
    DrawsWithTorch: "DrawsWithTorch.validation_step draws random numbers",
    DrawsWithPython: "DrawsWithPython.validation_step draws random numbers",
    Gathers: "Gathers.validation_step exchanges something between processes",
    Waits: "Waits.validation_step exchanges something between processes",
    ComputesMetric: "ComputesMetric.validation_step computes the metric accuracy before all batches are seen",
    LogsSteps: "LogsSteps logs 'each' for every step",
    Fails: "a trial of Fails.validation_step failed: no",
}


@pytest.mark.parametrize("module", FINDINGS, ids=lambda module: module.__name__)
def test_a_trial_finds_what_a_step_does_besides_logging(module):
    assert attempt(module()) == FINDINGS[module]


def test_a_trial_leaves_no_trace():
    torch.manual_seed(0)
    module = Collects()
    module.accuracy.update(torch.tensor([1]), torch.tensor([1]))
    state, generators = {name: value.clone() for name, value in module.state_dict().items()}, generator_states()
    attempt(module)
    assert identical(dict(module.state_dict()), state)
    assert module.outputs == []
    assert module.accuracy.update_count == 1
    assert generator_states() == generators


@pytest.mark.parametrize("stage", ["validation", "test"])
def test_nothing_speaks_against_sharing_the_classifier(stage):
    module = Classifier(FullyConnected(6, num_classes=4), num_classes=4, top_k=2)
    assert attempt(module, stage) is None
    assert metric_without_exact_sum(module) is None
    assert hook_that_sees_batches(module, [], stage) is None


class Hooked(Net):
    def on_test_epoch_end(self):
        pass


def test_a_hook_that_may_use_what_was_collected_is_found_for_its_stage_only():
    assert hook_that_sees_batches(Hooked(), [], "test") == (
        "Hooked.on_test_epoch_end may use what the steps on all batches have collected"
    )
    assert hook_that_sees_batches(Hooked(), [], "validation") is None


class FetchesItself(Net):
    def validation_step(self, dataloader_iter):
        next(dataloader_iter)


def test_a_step_that_fetches_its_batches_itself_is_found():
    assert hook_that_sees_batches(FetchesItself(), [], "validation") == (
        "FetchesItself.validation_step fetches its batches itself"
    )


class Collector(Callback):
    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        pass


class OwnBar(TQDMProgressBar):
    def on_validation_batch_end(self, *args):
        pass


def test_a_users_callback_that_sees_batches_is_found_but_not_lightnings_own_and_progress_bars():
    assert hook_that_sees_batches(Net(), [Collector()], "validation") == (
        "Collector.on_validation_batch_end may collect something from all batches"
    )
    harmless = [EarlyStopping("val_loss"), ModelCheckpoint(), TQDMProgressBar(), OwnBar(), Callback()]
    assert hook_that_sees_batches(Net(), harmless, "validation") is None


class MeanOfRanks(Metric):
    def __init__(self) -> None:
        super().__init__()
        self.add_state("share", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, share):
        self.share = share

    def compute(self):
        return self.share


METRICS = {
    "sums": (lambda: MeanMetric(), True),
    "lists": (lambda: MulticlassAUROC(4), True),
    "a collection": (lambda: MetricCollection([MeanMetric(), MulticlassAUROC(4)]), True),
    "a mean over processes": (lambda: MeanOfRanks(), False),
    "a reduction of its own": (lambda: PearsonCorrCoef(), False),
    "a running window": (lambda: Running(MeanMetric(), window=2), False),
}


@pytest.mark.parametrize("kind", METRICS)
def test_a_metric_whose_states_do_not_add_up_is_found(kind):
    make, exact = METRICS[kind]
    module = Net()
    module.parts = nn.ModuleDict({"mine": make()})
    found = metric_without_exact_sum(module)
    if exact:
        assert found is None
    else:
        assert found.startswith("the states of the metric parts.mine (")
