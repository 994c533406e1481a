"""What the validation of the served model showed, round by round."""

from collections.abc import Collection, Mapping
from typing import Any


class Evaluations:
    """Validation metrics by round. The server records them, and clients find them in their round.

    Attributes:
        names: the metrics that validation logs; None until a validation has shown them.
    """

    def __init__(self) -> None:
        self.names: frozenset[str] | None = None
        self._by_round: dict[int, dict[str, float]] = {}

    def expect(self, names: Collection[str]) -> None:
        """Note which metrics validation logs, before the first validation of a round."""
        self.names = frozenset(names)

    def record(self, round: int, values: Mapping[str, float], forget_earlier: bool = False) -> None:
        """Keep the metrics of the validation after ``round``."""
        if forget_earlier:
            self._by_round.clear()
        self._by_round[round] = dict(values)
        self.expect(values)

    def after(self, round: int) -> Mapping[str, float]:
        """Return the metrics of the last validation that had run by the end of ``round``."""
        while round >= 0 and round not in self._by_round:
            round -= 1
        return self._by_round.get(round, {})

    def state_dict(self) -> dict[int, Any]:
        """Return what the checkpoint keeps."""
        return {round: dict(values) for round, values in self._by_round.items()}

    def load_state_dict(self, state_dict: Mapping[int, Mapping[str, float]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.names, self._by_round = None, {}
        for round, values in state_dict.items():
            self.record(round, values)
