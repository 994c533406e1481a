"""Clients that do less than the others: they drop out of a round, or train for fewer epochs."""

from collections.abc import Sequence

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for


def check_epochs(epochs: int | Sequence[int]) -> None:
    """Reject numbers of local epochs that are not one number, or the smallest and the largest of a range."""
    smallest, largest = (epochs, epochs) if not isinstance(epochs, Sequence) else _both_ends(epochs)
    check_number("epochs", smallest, at_least=1, reason="a client must train", setting="client.epochs")
    check_number("epochs", largest, at_least=1, reason="a client must train", setting="client.epochs")
    if smallest > largest:
        raise MisconfigurationError(f"epochs={epochs}: set client.epochs to [{largest}, {smallest}]")


def check_dropout(dropout: float) -> None:
    """Reject a number that is not a probability below 1."""
    reason = "it is the probability that a client drops out"
    check_number("dropout", dropout, at_least=0, below=1, reason=reason, setting="client.dropout")


def _both_ends(epochs: Sequence[int]) -> tuple[int, int]:
    if len(epochs) != 2 or not all(isinstance(number, int) for number in epochs):
        raise MisconfigurationError(f"epochs={epochs}: set client.epochs to a number, or to [smallest, largest]")
    return epochs[0], epochs[1]


def draw_epochs(epochs: int | Sequence[int], seed: int, round: int, client: int) -> int:
    """Return how many epochs a client trains for in a round, drawn uniformly if ``epochs`` is a range."""
    if isinstance(epochs, int):
        return epochs
    smallest, largest = epochs
    return int(generator_for("epochs", seed, round, client).integers(smallest, largest, endpoint=True))


def draw_dropouts(dropout: float, seed: int, round: int, cohort: Sequence[int]) -> set[int]:
    """Return the clients of a cohort that drop out, each with probability ``dropout``.

    If all of them would, the one that drew the largest number stays, so that a round always has a client.
    """
    draws = {client: generator_for("dropout", seed, round, client).random() for client in cohort}
    lost = {client for client, draw in draws.items() if draw < dropout}
    return lost - {max(draws, key=lambda client: draws[client])} if len(lost) == len(draws) else lost
