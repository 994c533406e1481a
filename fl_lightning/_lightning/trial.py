"""A trial of a module's validation or test step on a copy, to see whether ranks can share its batches.

Shared batches give the results of one process only if a step depends on nothing but its batch and the model, and
leaves nothing behind but what it logs.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.attributes import describe_attributes, first_change
from fl_lightning._lightning.client_module import client_copy
from fl_lightning._lightning.delegation import with_loaders
from fl_lightning._lightning.names import LightningModule, Trainer
from fl_lightning._lightning.quiet import without_announcements
from fl_lightning._lightning.trainer import ClientStrategy, TrainerTemplate
from fl_lightning.core.randomness import generator_states, preserved_generators

_BATCHES = 2
#: layers that change in every step, and are checked in another way
_METRICS = (Metric, MetricCollection)


def try_step(trainer: Trainer, module: LightningModule, loaders: Sequence[Any], stage: str) -> str | None:
    """Run the step on the first batches of each loader, and return what prevents sharing, or None.

    Args:
        trainer: the server's Trainer.
        module: the user's module. A copy of it runs.
        loaders: loaders that evaluate everything.
        stage: ``validation`` or ``test``.
    """
    strategy = _WatchingStrategy(trainer, module)
    with preserved_generators(), without_announcements(), warnings.catch_warnings(), torch.inference_mode(False):
        warnings.simplefilter("ignore")
        batches = [_Batches(loader) for loader in loaders]
        evaluator = TrainerTemplate(module.device, strategy=strategy).copy()
        assert isinstance(evaluator.strategy, _WatchingStrategy)
        try:
            _evaluate(evaluator, client_copy(module), trainer, batches, stage)
        except Exception as error:  # the evaluation itself will raise it again
            return f"a trial of {type(module).__name__}.{stage}_step failed: {error}".splitlines()[0]
        if evaluator.strategy.finding is not None:
            return evaluator.strategy.finding
        loop: Any = evaluator.test_loop if stage == "test" else evaluator.validate_loop
        logged = _step_value(loop._results)
        return None if logged is None else f"{type(module).__name__} logs {logged!r} for every step"


def _evaluate(
    evaluator: Trainer, module: LightningModule, trainer: Trainer, batches: "list[_Batches]", stage: str
) -> None:
    evaluate: Callable = evaluator.test if stage == "test" else evaluator.validate
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    if data is None:
        evaluate(module, dataloaders=batches, verbose=False)
    else:
        source = with_loaders(getattr(data, "source", data), validation=batches, test=batches)
        evaluate(module, datamodule=source, verbose=False)


class _Batches:
    """The first batches of a loader, already fetched."""

    def __init__(self, loader: Any) -> None:
        self.batches = list(islice(loader, _BATCHES))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _WatchingStrategy(ClientStrategy):
    """Watches what a step does besides logging. The module sees the rank and world size of the run."""

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        super().__init__(module.device)
        self.world_size = trainer.world_size
        self.global_rank = trainer.global_rank
        #: the first finding that prevents sharing
        self.finding: str | None = None
        self._step: str | None = None

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._watch("validation_step", super().validation_step, *args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        return self._watch("test_step", super().test_step, *args, **kwargs)

    def all_gather(self, *args: Any, **kwargs: Any) -> Any:
        self._note_exchange()
        return super().all_gather(*args, **kwargs)

    def reduce(self, *args: Any, **kwargs: Any) -> Any:
        self._note_exchange()
        return super().reduce(*args, **kwargs)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        self._note_exchange()
        return super().barrier(*args, **kwargs)

    def broadcast(self, *args: Any, **kwargs: Any) -> Any:
        self._note_exchange()
        return super().broadcast(*args, **kwargs)

    def _watch(self, name: str, step: Callable, *args: Any, **kwargs: Any) -> Any:
        module = self.lightning_module
        assert module is not None
        self._step = f"{type(module).__name__}.{name}"
        attributes, computed_before = describe_attributes(module, _METRICS), _computed_metrics(module)
        generators, exchanges = generator_states(), _count_exchanges()
        output = step(*args, **kwargs)
        if _count_exchanges() != exchanges:
            self._note_exchange()
        if generator_states() != generators:
            self._note("draws random numbers")
        if changed := first_change(attributes, describe_attributes(module, _METRICS)):
            self._note(f"changes self.{changed}")
        for computed in _computed_metrics(module) - computed_before:
            self._note(f"computes the metric {computed} before all batches are seen")
        self._step = None
        return output

    def _note_exchange(self) -> None:
        if self._step is not None:  # otherwise, Lightning itself calls this
            self._note("exchanges something between processes")

    def _note(self, finding: str) -> None:
        self.finding = self.finding or f"{self._step} {finding}"


def _step_value(results: Mapping[str, Any]) -> str | None:
    """Return the name of a value that was logged for every step, or None."""
    return next((item.meta.name for item in results.values() if item.meta.on_step), None)


def _count_exchanges() -> int:
    """Return how many collective operations this process has taken part in."""
    group: Any = dist.group.WORLD
    return 0 if group is None else group._get_sequence_number_for_group()


def _computed_metrics(module: LightningModule) -> set[str]:
    """Return the names of the metrics whose ``compute`` was called after their last update."""
    metrics = {name: layer for name, layer in module.named_modules() if isinstance(layer, Metric)}
    return {name for name, metric in metrics.items() if metric._computed is not None}
