"""Krum and multi-Krum: follow the clients that are closest to their neighbours.

Blanchard, El Mhamdi, Guerraoui, Stainer. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
NeurIPS 2017 (section 4; multi-Krum in section 5).
"""

import torch
from torch import Tensor, nn

from fl_lightning.aggregation.base import Aggregate, Federation
from fl_lightning.aggregation.robust import ColumnAggregator, check_fraction, differences, share_of, warn_if_nobody
from fl_lightning.core.errors import MisconfigurationError


class Krum(ColumnAggregator):
    """The model of the client with the smallest score becomes the global model.

    A client's score is s(i) = Σ ‖w_i - w_j‖² over the n - f - 2 clients j closest to it, where n clients took part and
    f of them may be bad. Distances are over parameters and statistics together, and both come from the chosen client.
    All clients count equally, because a bad client could claim any number of samples.

    Args:
        fraction: the fraction of a round's clients that may be bad; f is this fraction, rounded down. With f > 0, Krum
            needs 2f + 2 < n.

    Attributes:
        chosen: the clients that were chosen in the last round.
    """

    def __init__(self, fraction: float = 0.2) -> None:
        check_fraction(fraction, self)
        self.fraction = fraction
        self.chosen: list[int] = []

    def prepare(self, model: nn.Module, federation: Federation) -> None:
        super().prepare(model, federation)
        if federation.clients_per_round is not None:
            self._num_bad(federation.clients_per_round)
        warn_if_nobody(self.fraction, federation, self, fewest=5)  # 2f + 2 < n

    def finish_round(self) -> Aggregate:
        clients = len(self.cohort)
        bad = self._num_bad(clients)
        scores = krum_scores(self._distances(), bad)
        chosen = scores.argsort(stable=True)[: self.num_chosen(clients, bad)]
        self.chosen = [self.cohort[place].update.client for place in sorted(chosen.tolist())]
        return Aggregate(self.result(self.mean_with(torch.zeros_like(scores).index_fill_(0, chosen, 1.0))))

    def num_chosen(self, clients: int, bad: int) -> int:
        """Return m, how many clients are averaged, given n and f."""
        return 1

    def _num_bad(self, clients: int) -> int:
        """Return f, or reject a fraction that is too large for Krum's guarantee (2f + 2 < n)."""
        bad = share_of(self.fraction, clients)
        if bad and 2 * bad + 2 >= clients:
            most = max((clients - 3) // 2, 0)
            fits = f"set fraction of {type(self).__name__} to {most / clients:.3g} or less, or select more clients"
            raise MisconfigurationError(
                f"fraction={self.fraction} means that f={bad} of {clients} clients in a round may be bad, but"
                f" {type(self).__name__} needs 2f + 2 < {clients}: {fits}"
            )
        return bad

    def _distances(self) -> Tensor:
        """Return ‖w_i - w_j‖² for all pairs of clients."""
        products = torch.zeros(len(self.cohort), len(self.cohort), dtype=self.dtype, device=self.device)
        for part in ("parameters", "statistics"):
            start = getattr(self.start, part)
            for place, rows in self.columns(part):
                # Shorter vectors than the states, so their products keep more digits.
                updates = differences(rows, start[place])
                products += updates @ updates.T
        squares = products.diagonal()
        return (squares[:, None] + squares[None, :] - 2 * products).clamp(min=0)


class MultiKrum(Krum):
    """The mean of the n - f clients with the smallest scores becomes the global model.

    Scores are computed as in :class:`Krum`. All chosen clients count equally.

    Args:
        fraction: the fraction of a round's clients that may be bad; f is this fraction, rounded down. 0 is the plain
            mean. With f > 0, multi-Krum needs 2f + 2 < n.
    """

    def num_chosen(self, clients: int, bad: int) -> int:
        return clients - bad


def krum_scores(distances: Tensor, bad: int) -> Tensor:
    """Return each client's score: the sum of distances to its n - f - 2 nearest neighbours, and to at least one.

    Args:
        distances: squared distances between all pairs of clients.
        bad: f, how many clients may be bad.
    """
    clients = len(distances)
    others = distances.clone().fill_diagonal_(float("inf")).sort(dim=1).values  # the client itself comes last
    return others[:, : max(clients - bad - 2, 1)].sum(dim=1)
