"""What robust aggregators share: the expected number of bad clients, and the clients' states side by side."""

import math
from collections.abc import Callable, Iterator

from torch import Tensor

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.aggregation.base import Federation
from fl_lightning.aggregation.split import SplitAggregator
from fl_lightning.core.limits import check_number
from fl_lightning.core.state import FlatState

#: maximum number of values in a block, so that comparing the clients of a large model takes little memory
_BLOCK = 2**22


def check_fraction(fraction: float, aggregator: object) -> None:
    """Reject a fraction of bad clients that leaves no majority of good clients."""
    reason, setting = "more than half of the clients must be good", f"fraction of {type(aggregator).__name__}"
    check_number("fraction", fraction, at_least=0, below=0.5, reason=reason, setting=setting)


def share_of(fraction: float, clients: int) -> int:
    """Return the fraction of a number of clients, rounded down. Float rounding does not matter: 0.29 of 100 is 29."""
    return int(fraction * clients + 1e-9)


def warn_if_nobody(fraction: float, federation: Federation, aggregator: object, fewest: int = 1) -> None:
    """Warn about a fraction of bad clients that is less than one client per round, so that it protects against none.

    Args:
        fraction: the fraction.
        federation: the run.
        aggregator: the aggregator that uses the fraction.
        fewest: with how many clients per round the aggregator can withstand a bad one.
    """
    clients = federation.clients_per_round
    if not clients or fraction == 0 or share_of(fraction, clients) > 0:
        return
    name, enough = type(aggregator).__name__, math.ceil(1000 / clients) / 1000
    fix = f"set fraction of {name} to {enough} or more, or select more clients"
    if clients < fewest:
        fix = f"select at least {fewest} clients per round, and set fraction of {name} to {1 / fewest:.3g} or more"
    rank_zero_warn(
        f"fraction={fraction} of {clients} clients per round is less than one client, so {name} treats all clients as"
        f" good: {fix}"
    )


class ColumnAggregator(SplitAggregator):
    """A base class that compares the clients entry by entry, parameters and statistics alike.

    Each rank keeps the updates of its own clients. The ranks exchange them in blocks of a few columns, so that no rank
    holds the updates of all clients at once.
    """

    def columns(self, part: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of one part of all clients' states, on every rank: one row per client, one column per entry.

        Args:
            part: ``parameters`` or ``statistics``.
        """
        size = len(getattr(self.start, part))
        width = max(_BLOCK // len(self.cohort), 1)
        for begin in range(0, size, width):
            place = slice(begin, min(begin + width, size))
            rows = [getattr(item.state, part)[place] for item in self.received]
            yield place, self.rows_of_all(rows, width=place.stop - begin)

    def combine(self, function: Callable[[Tensor], Tensor]) -> FlatState:
        """Return a state whose parameters and statistics are ``function`` of their columns, with the largest counters.

        Args:
            function: turns a matrix with one row per client into a single row.
        """
        state = self.layout.zeros(self.dtype, self.device)
        for part in ("parameters", "statistics"):
            for place, rows in self.columns(part):
                getattr(state, part)[place] = function(rows)
        return FlatState(state.parameters, state.statistics, self.largest_counters)
