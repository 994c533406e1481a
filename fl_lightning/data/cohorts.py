"""The sampler of the server's training loader, whose only batch per round is the list of clients that take part."""

from collections.abc import Callable, Iterator, Sequence

from torch.utils.data import Dataset, DistributedSampler


class CohortSampler(DistributedSampler):
    """A sampler that yields this rank's share of the round's clients, as one list.

    It is a ``DistributedSampler`` because Lightning keeps such samplers and calls their ``set_epoch`` with the round.

    Args:
        cohort: returns the clients of a round.
        size: returns a client's workload in a round. Clients are assigned from the largest to the smallest, each to the
            rank with the smallest workload so far.
        num_replicas: number of ranks.
        rank: number of this rank.
    """

    def __init__(
        self,
        cohort: Callable[[int], Sequence[int]],
        size: Callable[[int, int], int],
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(_Identity(), num_replicas=num_replicas, rank=rank, shuffle=False)
        self.cohort = cohort
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        # A generator, because Lightning asks for the iterator before it sets the round.
        yield self.share(self.cohort(self.epoch))

    def share(self, cohort: Sequence[int]) -> list[int]:
        """Return this rank's clients, in the order of the cohort. A rank may get none."""
        if self.num_replicas == 1:
            return list(cohort)
        loads = [0] * self.num_replicas
        mine = set()
        sizes = {client: self.size(client, self.epoch) for client in cohort}
        for client in sorted(cohort, key=lambda client: (-sizes[client], client)):
            rank = loads.index(min(loads))
            loads[rank] += sizes[client]
            if rank == self.rank:
                mine.add(client)
        return [client for client in cohort if client in mine]

    def __len__(self) -> int:
        return 1


class _Identity(Dataset):
    """A data set that returns its index, because the sampler already yields the batch."""

    def __getitem__(self, clients: list[int]) -> list[int]:
        return clients

    def __len__(self) -> int:
        return 1
