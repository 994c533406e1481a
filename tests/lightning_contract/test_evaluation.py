"""What sharing an evaluation relies on beyond the public interfaces of Lightning, torchmetrics and torch."""

import torch
import torch.distributed as dist
from pytorch_lightning.loops.evaluation_loop import _EvaluationLoop
from pytorch_lightning.trainer.connectors.logger_connector.result import _ResultMetric
from pytorch_lightning.utilities import CombinedLoader
from torchmetrics import SumMetric
from torchmetrics.classification import MulticlassAUROC

from tests.toys import Blobs, Net, quiet_trainer


def evaluation_loops(trainer):
    return [trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop]


def test_the_evaluation_loops_are_the_ones_that_are_replaced():
    message = "evaluation_loop.share_evaluation replaces the classes and the results of these loops"
    for loop in evaluation_loops(quiet_trainer()):
        assert type(loop) is _EvaluationLoop, message
        assert type(loop._results).__name__ == "_ResultCollection", message
        assert loop._results.training is False, message


def test_an_evaluation_passes_through_the_methods_that_are_overridden(monkeypatch):
    calls = []

    def watch(name):
        original = getattr(_EvaluationLoop, name)

        def watched(self, *args):
            calls.append((name, type(self._combined_loader), args[1:3]))
            return original(self, *args)

        monkeypatch.setattr(_EvaluationLoop, name, watched)

    for name in ("reset", "_evaluation_step", "_store_dataloader_outputs", "teardown"):
        watch(name)
    trainer = quiet_trainer(limit_val_batches=2)
    trainer.validate(Net(), datamodule=Blobs(), verbose=False)
    assert calls == [
        ("reset", CombinedLoader, ()),
        ("_evaluation_step", CombinedLoader, (0, 0)),
        ("_evaluation_step", CombinedLoader, (1, 0)),
        ("_store_dataloader_outputs", CombinedLoader, ()),
        ("teardown", CombinedLoader, ()),
    ], "evaluation_loop.SharedEvaluationLoop overrides these methods and swaps _combined_loader in reset"
    assert trainer.validate_loop.max_batches == [2]
    assert trainer.validate_loop._is_sequential is True, "evaluation_loop reads _EvaluationLoop._is_sequential"


def test_values_are_kept_as_sums_with_the_arguments_of_log():
    kept = {}

    class Watch(Net):
        def validation_step(self, batch, batch_idx):
            self.log("mean", torch.tensor(float(batch_idx)), batch_size=2)
            self.log("largest", torch.tensor(float(batch_idx)), reduce_fx="max")

        def on_validation_epoch_end(self):
            for key, item in self.trainer._results.valid_items():
                kept[key] = item, item.value.item()

    quiet_trainer().validate(Watch(), datamodule=Blobs(), verbose=False)
    message = "evaluation_results.EvaluationResults reads these attributes of _ResultMetric and _Metadata"
    mean, total = kept["validation_step.mean"]
    largest, value = kept["validation_step.largest"]
    assert (total, value) == (2 * (0 + 1 + 2), 2), message
    assert mean.is_tensor, message
    assert mean.meta.is_mean_reduction, message
    assert largest.meta.is_max_reduction, message
    assert not largest.meta.is_min_reduction, message
    assert hasattr(mean, "cumulated_batch_size"), message
    assert hasattr(mean, "_computed"), message
    names = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph")
    assert all(hasattr(mean.meta, name) for name in (*names, "add_dataloader_idx", "metric_attribute")), message


def test_the_arguments_of_log_have_the_names_that_are_left_out():
    results = quiet_trainer().validate_loop._results
    value = torch.tensor(1.0)
    results.log(
        *("validation_step", "x", value),
        sync_dist=False,
        sync_dist_fn=None,
        sync_dist_group=None,
        rank_zero_only=False,
        metric_attribute=None,
        batch_size=3,
    )
    assert results["validation_step.x"].value == 3, "evaluation_results.EvaluationResults.log passes these arguments on"


def test_a_logged_value_is_moved_by_the_method_that_is_overridden(monkeypatch):
    moved = []
    original = _ResultMetric.to
    monkeypatch.setattr(_ResultMetric, "to", lambda self, *args: (moved.append(args), original(self, *args))[1])
    results = quiet_trainer().validate_loop._results
    results.log("validation_step", "x", torch.tensor(1.0))
    assert moved == [(torch.device("cpu"),)], "placed_results._PlacedResult.to expects one device"
    assert type(results["validation_step.x"]) is _ResultMetric, "placed_results replaces the class of the items"


def test_a_metric_names_the_reductions_of_its_states_and_caches_its_value():
    metric = MulticlassAUROC(3)
    assert {reduction.__name__ for reduction in metric._reductions.values()} == {"dim_zero_cat"}, (
        "sharing.metric_without_exact_sum and evaluation_results read Metric._reductions"
    )
    total = SumMetric()
    total.update(1.0)
    assert total._computed is None
    total.compute()
    assert total._computed == 1, "trial._computed_metrics reads Metric._computed"
    total(1.0)
    assert total._computed is None, "calling a metric must not look like calling compute"
    assert total._update_count == 2, "evaluation_results._combined_states sets Metric._update_count"
    assert callable(metric.distributed_available_fn), "evaluation_loop._local_metrics replaces it"


def test_a_process_group_counts_collective_operations(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        before = dist.group.WORLD._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(1))
        after = dist.group.WORLD._get_sequence_number_for_group()
    finally:
        dist.destroy_process_group()
    assert after == before + 1, "trial._count_exchanges reads _get_sequence_number_for_group"


def test_a_strategy_holds_the_rank_that_the_trainer_reports():
    trainer = quiet_trainer()
    trainer.strategy.global_rank, trainer.strategy.world_size = 1, 3
    assert (trainer.global_rank, trainer.world_size) == (1, 3), "trial._WatchingStrategy sets both"
