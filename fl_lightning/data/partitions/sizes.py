"""How many samples each client has: equal numbers, or a power law."""

from typing import Literal

import numpy as np

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number

Sizes = Literal["balanced", "power_law"]


def client_shares(num_clients: int, sizes: Sizes, exponent: float = 1.0) -> np.ndarray:
    """Return the relative size of each client's data: 1 for all, or (k + 1)^-exponent for client k."""
    if sizes not in ("balanced", "power_law"):
        raise MisconfigurationError(f"sizes={sizes!r}: set data.partition.init_args.sizes to balanced or power_law")
    check_number("exponent", exponent, at_least=0, setting="data.partition.init_args.exponent")
    return np.arange(1, num_clients + 1, dtype=float) ** -(exponent if sizes == "power_law" else 0.0)


def whole_sizes(total: int, shares: np.ndarray, minimum: int = 1) -> np.ndarray:
    """Divide ``total`` into whole numbers in proportion to ``shares``, by largest remainders.

    A part that would be smaller than ``minimum`` is raised to it; the others share the rest in proportion.
    """
    exact = np.full(len(shares), float(minimum))
    above = np.ones(len(shares), dtype=bool)
    while above.any():
        rest = total - minimum * np.count_nonzero(~above)
        exact[above] = rest * (shares[above] / shares[above].sum())
        below = above & (exact < minimum)
        if not below.any():
            break
        exact[below] = minimum
        above &= ~below
    sizes = np.floor(exact).astype(np.int64)
    missing = total - sizes.sum()
    if missing:
        sizes[np.argsort(sizes - exact, kind="stable")[:missing]] += 1
    return sizes
