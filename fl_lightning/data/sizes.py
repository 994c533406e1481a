"""How much data each client has: equal parts, or a power law."""

from typing import Literal

import numpy as np
from pytorch_lightning.utilities.exceptions import MisconfigurationException

Sizes = Literal["balanced", "power_law"]


def client_shares(num_clients: int, sizes: Sizes, exponent: float = 1.0) -> np.ndarray:
    """Relative sizes of the clients' data: all 1, or (k + 1)^-exponent for client k."""
    if sizes not in ("balanced", "power_law"):
        raise MisconfigurationException(f"sizes={sizes!r} is not one of balanced, power_law")
    if not exponent >= 0:
        raise MisconfigurationException(f"exponent={exponent}, but the power law falls: set it to 0 or more")
    return np.arange(1, num_clients + 1, dtype=float) ** -(exponent if sizes == "power_law" else 0.0)


def whole_sizes(total: int, shares: np.ndarray, minimum: int = 1) -> np.ndarray:
    """Whole numbers that add up to ``total``, in proportion to ``shares`` (largest remainders), none below ``minimum``.

    Who would get less than the minimum gets the minimum; the others share the rest in proportion.
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
    sizes[np.argsort(sizes - exact, kind="stable")[: total - sizes.sum()]] += 1
    return sizes


def cut(samples: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Consecutive pieces of the given sizes."""
    ends = np.cumsum(sizes).tolist()
    return [samples[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
