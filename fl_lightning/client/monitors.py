"""Schedulers that monitor a metric, such as ``ReduceLROnPlateau``, on clients."""

from collections.abc import Collection, Sequence
from typing import Any

from fl_lightning._lightning.names import Trainer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round


class MonitorNotKnownError(Exception):
    """Raised if no client has trained yet, so it is unknown whether clients log the metric of a scheduler."""


def check_monitors(
    configs: Sequence[Any], round: Round, logged: Collection[str] | None, only_validation: bool
) -> list[str]:
    """Reject a scheduler whose metric will never exist, and return the metrics that the server has yet to measure.

    Validation runs on the server, so a client gets the values of the last validation. Metrics that clients log
    themselves are available as in any Trainer.

    Args:
        configs: Lightning's configurations of the schedulers.
        round: the round that the client trains in.
        logged: the metrics that clients log; None if that is not known.
        only_validation: whether to reject schedulers that monitor what clients log.
    """
    measured, expected = round.evaluations.after(round.number - 1), round.evaluations.names
    missing = []
    for config in (config for config in configs if config.reduce_on_plateau):
        monitor = config.monitor
        if monitor not in measured and monitor not in (expected or ()):
            if logged is None:
                raise MonitorNotKnownError(monitor)
            if monitor in logged and only_validation:
                raise MisconfigurationError(
                    f"clock=run, but a learning-rate scheduler monitors {monitor!r}, whose past values only the clients"
                    " know: monitor a validation metric, or set client.clock to round"
                )
            if monitor in logged:
                continue
            if expected is not None and config.strict:
                known = ", ".join(sorted({*expected, *logged}))
                raise MisconfigurationError(
                    f"a learning-rate scheduler monitors {monitor!r}, which neither validation nor the clients log: "
                    + (f"monitor one of {known}" if known else "log it, or use a scheduler without a monitor")
                )
        config.strict = False  # Lightning would raise an error in epochs before the first validation
        if monitor not in measured and (expected is None or monitor in expected):
            missing.append(monitor)
    return missing


def ignore_monitors(trainer: Trainer) -> None:
    """Let a scheduler whose metric is missing do nothing."""
    for config in trainer.lr_scheduler_configs:
        config.strict = False
