"""Validation and test on several ranks: each rank evaluates some of the batches, with the same results as one process.

If this cannot be exact, every rank evaluates everything, and a message says why.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchmetrics import Metric

from fl_lightning._lightning.client_module import never
from fl_lightning._lightning.evaluation_results import EvaluationResults
from fl_lightning._lightning.names import CombinedLoader, LightningModule, Trainer, rank_zero_info
from fl_lightning._lightning.plain_evaluation import PlainEvaluationLoop
from fl_lightning._lightning.sharing import hook_that_sees_batches, metric_without_exact_sum
from fl_lightning._lightning.trial import try_step
from fl_lightning.core.distributed import gather_objects


@dataclass
class Sharing:
    """What the loops need to share batches.

    Args:
        module: the user's module.
        why_not_shared: returns why the batches of a loader cannot be shared, or None if they can.
        share_of: returns a loader over the batches of one rank, given the loader, the rank, the number of ranks and the
            number of batches that are evaluated.
    """

    module: LightningModule
    why_not_shared: Callable[[Any], str | None]
    share_of: Callable[[Any, int, int, int], Any]


def share_evaluation(trainer: Trainer, sharing: Sharing) -> None:
    """Let ranks share the batches of validation and test. For a single process, only hooks and logs become faster."""
    for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
        loop._results = EvaluationResults(training=False)
        loop.__class__ = PlainEvaluationLoop
        if trainer.world_size > 1:
            loop.__class__ = SharedEvaluationLoop
            assert isinstance(loop, SharedEvaluationLoop)
            loop.sharing = sharing


class SharedEvaluationLoop(PlainEvaluationLoop):
    """An evaluation loop in which each rank evaluates every n-th batch, if the results can be exact."""

    sharing: Sharing
    #: this rank's part of the loaders, or None while every rank evaluates everything
    _share: CombinedLoader | None = None
    #: the loaders that were last examined, and why they are not shared
    _examined: CombinedLoader | None = None
    _obstacle: str | None = None

    def run(self) -> Any:
        with _local_metrics(self.sharing.module):
            return super().run()

    def reset(self) -> None:
        """Start with this rank's batches."""
        everything = self._combined_loader
        assert everything is not None
        self._share = self._share_of(everything)
        self._combined_loader = everything if self._share is None else self._share
        super().reset()
        self._combined_loader = everything

    def teardown(self) -> None:
        super().teardown()
        if self._share is not None and self._combined_loader is not None:
            self._combined_loader.reset()  # stops the workers of the sanity check, which evaluated everything

    def _evaluation_step(self, batch: Any, batch_idx: int, dataloader_idx: int, dataloader_iter: Any) -> None:
        if self._share is not None:
            batch_idx = batch_idx * self.trainer.world_size + self.trainer.global_rank
        super()._evaluation_step(batch, batch_idx, dataloader_idx, dataloader_iter)

    def _store_dataloader_outputs(self) -> None:
        """Synchronise the values of a loader's batches. All ranks come here once per loader, in the same order."""
        if self._share is not None:
            assert isinstance(self._results, EvaluationResults)
            self._results.synchronise(self.sharing.module)
        super()._store_dataloader_outputs()

    def _share_of(self, loaders: CombinedLoader) -> CombinedLoader | None:
        if self.trainer.sanity_checking:  # two batches are not worth sharing
            return None
        if self._examined is not loaders:
            self._examined, before = loaders, self._obstacle
            self._obstacle = self._find_obstacle(loaders)
            if self._obstacle is not None and self._obstacle != before:
                data = "test" if self.trainer.testing else "validation"
                rank_zero_info(f"Every process evaluates all {data} data, because {self._obstacle}")
        if self._obstacle is not None:
            return None
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        limits = [int(limit) for limit in self.max_batches]
        shares = [
            self.sharing.share_of(loader, rank, world_size, limit)
            for loader, limit in zip(loaders.flattened, limits, strict=True)
        ]
        return CombinedLoader(shares, "sequential")

    def _find_obstacle(self, loaders: CombinedLoader) -> str | None:
        """Return why shared batches would change the results, or None if they would not. All ranks agree."""
        found = gather_objects([(self._find_own_obstacle(loaders), self.max_batches)], self.sharing.module.device)
        obstacle = next((obstacle for obstacle, _ in found if obstacle is not None), None)
        if obstacle is None and any(batches != self.max_batches for _, batches in found):
            return "processes have different numbers of batches"
        return obstacle

    def _find_own_obstacle(self, loaders: CombinedLoader) -> str | None:
        stage = "test" if self.trainer.testing else "validation"
        world_size = self.trainer.world_size
        if not self._is_sequential:
            return "a CombinedLoader joins the batches of several loaders"
        for loader, batches in zip(loaders.flattened, self.max_batches, strict=True):
            if reason := self.sharing.why_not_shared(loader):
                return reason
            if 0 < batches < world_size:
                return f"a loader has {batches} batches for {world_size} processes"
        module = self.sharing.module
        return (
            hook_that_sees_batches(module, self.trainer.callbacks, stage)  # type: ignore[attr-defined]
            or metric_without_exact_sum(module)
            or try_step(self.trainer, module, loaders.flattened, stage)
        )


@contextmanager
def _local_metrics(module: LightningModule) -> Iterator[None]:
    """Keep the module's metrics from synchronising themselves, because ranks may have different numbers of batches."""
    metrics = [layer for layer in module.modules() if isinstance(layer, Metric)]
    usual = [metric.distributed_available_fn for metric in metrics]
    for metric in metrics:
        metric.distributed_available_fn = never
    try:
        yield
    finally:
        for metric, function in zip(metrics, usual, strict=True):
            metric.distributed_available_fn = function
