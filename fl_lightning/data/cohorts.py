"""The server's training loader: one batch a round, the clients that take part."""

from collections.abc import Callable, Iterator, Sequence

from torch.utils.data import Dataset, DistributedSampler


class CohortSampler(DistributedSampler):
    """Yields this rank's share of the round's clients, as one list.

    It is a ``DistributedSampler`` because Lightning leaves those alone and tells them the round by ``set_epoch``.

    Args:
        cohort: the clients of a round.
        size: how much work a client is in a round; the largest are dealt first, each to the rank with the least to do.
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
        # A generator: the round is known when the loader starts, not when Lightning asks for the iterator.
        yield self.share(self.cohort(self.epoch))

    def share(self, cohort: Sequence[int]) -> list[int]:
        """This rank's clients, in the order of the cohort; none if there are fewer clients than ranks."""
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
    """Gives back what it is asked for: the sampler already has the batch."""

    def __getitem__(self, clients: list[int]) -> list[int]:
        return clients

    def __len__(self) -> int:
        return 1
