"""What robust aggregators share: the expected number of bad clients, and the clients' states side by side."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.aggregation.base import Federation
from fl_lightning.aggregation.changed_entries import ChangedEntries, as_real
from fl_lightning.aggregation.split import SplitAggregator
from fl_lightning.core.distributed import gather_messages, is_distributed
from fl_lightning.core.limits import check_number
from fl_lightning.core.state import FlatState, StateDict, is_unchanged

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


def column_medians(rows: Tensor) -> Tensor:
    """Return the median of each column: the middle value, or the mean of the two middle values.

    Of two middle integers, it is the smaller one.
    """
    ordered = rows.sort(dim=0).values
    low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
    if not rows.is_floating_point():
        return low
    return torch.where(low == high, low, torch.lerp(low, high, 0.5))  # lerp would turn two infinite numbers into NaN


def differences(values: Tensor, start: Tensor) -> Tensor:
    """Return ``values - start``, and 0 where both are the same infinite number, such as in an attention mask."""
    return torch.where(values == start, 0, values - start)


class ChangedMedians(ChangedEntries):
    """Takes the median of every entry that at least one client of the round changed.

    All clients count equally. A client that left an entry alone takes part with the global value. Boolean entries take
    the value of most clients, and the global value in a tie.
    """

    def __init__(self, names: Iterable[str], start: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__(names, start, dtype)
        #: by client, the entries that it changed
        self._received: list[StateDict] = []

    def add(self, state: Mapping[str, Tensor], weight: float) -> None:
        sent = {name: state[name].detach() for name in self.names if name in state}
        changed = {name: value for name, value in sent.items() if not is_unchanged(value, self.start[name])}
        self._received.append({name: value.clone() for name, value in changed.items()})

    def reduce(self) -> None:
        if self.names and is_distributed():
            device = self.start[self.names[0]].device
            messages = gather_messages([(None, changed) for changed in self._received], device)
            self._received = [changed for _, changed in messages]

    def values(self) -> StateDict:
        return {name: self._median(name) for name in dict.fromkeys(name for each in self._received for name in each)}

    def _median(self, name: str) -> Tensor:
        start = self.start[name]
        values = [as_real(changed.get(name, start)) for changed in self._received]
        kind = self.dtype if start.is_floating_point() or start.is_complex() else torch.int64
        columns = zip(*(value.reshape(-1).split(max(_BLOCK // len(values), 1)) for value in values), strict=True)
        if start.dtype == torch.bool:
            majority = torch.cat([2 * torch.stack(rows).sum(dim=0) for rows in columns]).view(start.shape) - len(values)
            return torch.where(majority == 0, start, majority > 0)
        medians = torch.cat([column_medians(torch.stack([row.to(kind) for row in rows])) for rows in columns])
        medians = medians.view(as_real(start).shape)
        return (torch.view_as_complex(medians) if start.is_complex() else medians).to(start.dtype)


class ColumnAggregator(SplitAggregator):
    """A base class that compares the clients entry by entry, parameters and statistics alike.

    A bad client must not be able to ruin anything else in the model either. So counters, and entries that clients
    change without gradients, become the medians over all clients.

    Each rank keeps the updates of its own clients. The ranks exchange them in blocks of a few columns, so that no rank
    holds the updates of all clients at once.
    """

    changed_entries = ChangedMedians

    @property
    def counters(self) -> Tensor:
        """The next value of each counter: the median."""
        rows = [item.state.counters for item in self.received]
        return column_medians(self.rows_of_all(rows, width=len(self.start.counters), dtype=torch.int64))

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
        """Return a state whose parameters and statistics are ``function`` of their columns, with the median counters.

        Args:
            function: turns a matrix with one row per client into a single row.
        """
        state = self.layout.zeros(self.dtype, self.device)
        for part in ("parameters", "statistics"):
            for place, rows in self.columns(part):
                getattr(state, part)[place] = function(rows)
        return FlatState(state.parameters, state.statistics, self.counters)
