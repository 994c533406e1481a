"""The privacy cost of a run with noise, computed by Google's ``dp-accounting``."""

from typing import Any

from fl_lightning.aggregation.base import Federation
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import AllClients, PoissonClients, RandomClients

#: Orders of the Rényi divergence. Every order gives a valid ε, and the smallest ε counts. The orders are whole numbers,
#: because the accountant warns about some of its own fractional ones in every round. This changes ε by at most a few
#: per cent.
_ORDERS = (*range(2, 32), *range(32, 64, 2), *range(64, 129, 8), 192, 256)


class PrivacyAccountant:
    """Computes ε for rounds in which Gaussian noise hides what any single client adds to a sum.

    Args:
        federation: the run, whose selection decides how much sampling helps.
        noise_multiplier: standard deviation of the noise, as a multiple of the longest update; 0 gives no guarantee.
        delta: δ of the guarantee.
    """

    def __init__(self, federation: Federation, noise_multiplier: float, delta: float) -> None:
        self._federation = federation
        self._noise_multiplier = noise_multiplier
        self._delta = delta
        # A subclass may select clients in a way for which these formulas do not hold.
        if type(federation.selection) not in (AllClients, RandomClients, PoissonClients):
            raise MisconfigurationError(
                f"selection={type(federation.selection).__name__}, for which no ε is known:"
                " set data.selection to PoissonClients, RandomClients or AllClients"
            )
        if noise_multiplier:
            self._event, self._relation = self._per_round()

    @property
    def clients_per_round(self) -> float:
        """The expected number of clients in a round."""
        selection, clients = self._federation.selection, self._federation.num_clients
        if isinstance(selection, PoissonClients):
            return selection.rate * clients
        return selection.size(clients) if isinstance(selection, RandomClients) else clients

    def epsilon(self, rounds: int) -> float:
        """Return ε after this many rounds."""
        accountant = _dp_accounting().rdp.RdpAccountant(_ORDERS, self._relation)
        return float(accountant.compose(self._event, rounds).get_epsilon(self._delta))

    def _per_round(self) -> tuple[Any, Any]:
        """Return a round as an event, and the relation between neighbouring federations."""
        dp_accounting = _dp_accounting()
        selection, relations = self._federation.selection, dp_accounting.NeighboringRelation
        if isinstance(selection, PoissonClients):
            noise = dp_accounting.GaussianDpEvent(self._noise_multiplier)
            return dp_accounting.PoissonSampledDpEvent(selection.rate, noise), relations.ADD_OR_REMOVE_ONE
        # A client with different data moves the sum by up to twice the longest update.
        noise = dp_accounting.GaussianDpEvent(self._noise_multiplier / 2)
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(
            self._federation.num_clients, int(self.clients_per_round), noise
        )
        return sampled, relations.REPLACE_ONE


def _dp_accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise MisconfigurationError(
            "DPFedAvg computes ε with dp-accounting, which is not installed:"
            " pip install 'fl_lightning[privacy]', or set noise_multiplier to 0"
        ) from error
    return dp_accounting
