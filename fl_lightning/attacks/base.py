"""Which clients are bad."""

from functools import lru_cache

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for
from fl_lightning.core.round import Round

#: maximum number of clients that a message lists
_LISTED = 20


class Attack:
    """Base of all attacks: a share of all clients is bad for the whole run.

    The bad clients follow from the seed. Attacks with the same share have the same bad clients, and a larger share
    includes the bad clients of a smaller one.

    Args:
        share: the share of all clients that is bad, rounded to whole clients; 0 changes nothing.
    """

    def __init__(self, share: float) -> None:
        reason, setting = "it is a share of the clients", f"share of {type(self).__name__}"
        check_number("share", share, at_least=0, at_most=1, reason=reason, setting=setting)
        self.share = share

    def bad_clients(self, num_clients: int, seed: int) -> frozenset[int]:
        """Return which of ``num_clients`` clients are bad in a run with this seed."""
        return _first_of_permutation(round(self.share * num_clients), num_clients, seed)

    def is_bad(self, client: int, round: Round) -> bool:
        """Return whether a client is bad."""
        if round.num_clients is None:
            raise MisconfigurationError(
                f"{type(self).__name__} draws its bad clients from all clients, but the number of clients is not known:"
                " set num_clients of Round"
            )
        return client in self.bad_clients(round.num_clients, round.seed)

    def describe(self, num_clients: int, seed: int) -> str:
        """Return a sentence that says which clients are bad."""
        bad = sorted(self.bad_clients(num_clients, seed))
        numbers = ", ".join(map(str, bad[:_LISTED])) + (", ..." if len(bad) > _LISTED else "")
        which = f"clients {numbers}" if bad else "no client"
        return f"{type(self).__name__}: {len(bad)} of {num_clients} clients are bad ({which})"


@lru_cache(maxsize=8)
def _first_of_permutation(count: int, num_clients: int, seed: int) -> frozenset[int]:
    return frozenset(generator_for("bad clients", seed).permutation(num_clients)[:count].tolist())
