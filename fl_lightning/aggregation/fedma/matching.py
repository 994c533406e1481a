"""Matching of atoms: finding out which units of different clients are the same unit.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni. Bayesian Nonparametric Federated Learning of Neural Networks.
ICML 2019. https://arxiv.org/abs/1905.12022

An atom is the row of weights that lead into one unit. The clients' rows are modelled as noisy copies of global
atoms, whose number is not fixed (a Beta-Bernoulli process). Given the atoms that the other clients hold, the best match
of one more client is a linear assignment. Matching the clients repeatedly, one after the other, finds a local optimum
of the posterior.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

#: one atom per row
Rows = NDArray[np.float64]
#: the number of the global atom that each row of a client belongs to
Assignment = NDArray[np.intp]


@dataclass(frozen=True)
class Process:
    """The Beta-Bernoulli process that the clients' atoms are assumed to come from.

    Args:
        sigma: σ, the variance of a client's row around its global atom.
        sigma0: σ0, the variance of the global atoms around 0.
        gamma: γ, how readily a new atom is created.
    """

    sigma: float = 1.0
    sigma0: float = 1.0
    gamma: float = 7.0


def match(
    clients: Sequence[Rows],
    process: Process,
    generator: np.random.Generator,
    sweeps: int = 5,
    max_width: int | None = None,
) -> list[Assignment]:
    """Return the global atom of each row of every client. Two rows of the same client never share an atom.

    The atoms are numbered without gaps, in the row order of the widest client (the first, if there are several),
    provided that it shares each of its atoms with another client.

    Args:
        clients: the rows of each client, one per unit.
        process: how likely rows are to belong together.
        generator: draws the order of the clients in a sweep.
        sweeps: how many times every client is taken out and matched again; stops early once nothing changes.
        max_width: maximum number of global atoms, at least as many as the widest client has; unlimited by default.
    """
    widest = max(range(len(clients)), key=lambda client: len(clients[client]))
    if max_width is not None and max_width < len(clients[widest]):
        raise ValueError(
            f"max_width={max_width}, but a client has {len(clients[widest])} atoms: set it to that or more"
        )
    pool = _Pool(clients, process, max_width)
    for client in (widest, *(client for client in range(len(clients)) if client != widest)):
        pool.add(client)
    for _ in range(sweeps):
        before = pool.assignments
        for client in generator.permutation(len(clients)):
            pool.remove(client)
            pool.add(client)
        if all(np.array_equal(before[client], atoms) for client, atoms in pool.assignments.items()):
            break
    return [pool.assignments[client] for client in range(len(clients))]


def score_matrix(
    rows: Rows, sums: Rows, counts: NDArray[np.int64], births: int, num_clients: int, process: Process
) -> NDArray[np.float64]:
    """Return how much assigning a row to an atom raises the posterior, as a (rows, atoms + births) matrix.

    Args:
        rows: the client's rows.
        sums: A, the sum of each atom's members divided by σ, without this client.
        counts: n, the number of members of each atom.
        births: number of new atoms that are available.
        num_clients: J, the number of clients.
        process: σ, σ0 and γ.
    """
    values = rows / process.sigma
    value_norms = np.square(values).sum(axis=1, keepdims=True)
    sum_norms = np.square(sums).sum(axis=1)
    precision = 1 / process.sigma0 + counts / process.sigma
    others = np.minimum(counts, num_clients - 1)
    existing = (
        (sum_norms + 2 * values @ sums.T + value_norms) / (precision + 1 / process.sigma)
        - sum_norms / precision
        + 2 * np.log(others / (num_clients - others))
    )
    born = (
        value_norms / (1 / process.sigma0 + 1 / process.sigma)
        + 2 * np.log(process.gamma / num_clients)
        - 2 * np.log(np.arange(1, births + 1))
    )
    return np.concatenate([existing, born], axis=1)


class _Pool:
    """The global atoms while clients are added and removed."""

    def __init__(self, clients: Sequence[Rows], process: Process, max_width: int | None) -> None:
        self._clients = clients
        self._process = process
        self._max_width = max_width
        self._sums: Rows = np.zeros((0, clients[0].shape[1]))
        self._counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.assignments: dict[int, Assignment] = {}

    def add(self, client: int) -> None:
        """Match a client with the existing atoms, and with new ones if there is room."""
        rows, width = self._clients[client], len(self._counts)
        births = len(rows) if self._max_width is None else min(len(rows), self._max_width - width)
        scores = score_matrix(rows, self._sums, self._counts, births, len(self._clients), self._process)
        _, atoms = linear_sum_assignment(scores, maximize=True)
        # New atoms are interchangeable. Numbering them in row order keeps the order of a single client.
        born = atoms >= width
        atoms[born] = width + np.arange(born.sum())
        self._sums = np.pad(self._sums, ((0, born.sum()), (0, 0)))
        self._counts = np.pad(self._counts, (0, born.sum()))
        self._sums[atoms] += rows / self._process.sigma
        self._counts[atoms] += 1
        self.assignments = {**self.assignments, client: atoms}

    def remove(self, client: int) -> None:
        """Remove a client, and the atoms that no other client holds."""
        atoms = self.assignments[client]
        self._sums[atoms] -= self._clients[client] / self._process.sigma
        self._counts[atoms] -= 1
        held = self._counts > 0
        number = np.cumsum(held) - 1
        self._sums, self._counts = self._sums[held], self._counts[held]
        self.assignments = {other: number[atoms] for other, atoms in self.assignments.items() if other != client}
