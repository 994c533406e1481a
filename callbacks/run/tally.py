"""The sums over a round's clients that every run logs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.core.distributed import gather_notes, sum_over_ranks
from fl_lightning.core.state import exact_dtype
from fl_lightning.core.transfer import to_device
from fl_lightning.core.update import ClientUpdate, LostClient, state_bytes


class Tally:
    """Sums over the clients of a round, on all ranks. They stay on the device until they are read, once.

    Args:
        device: device of the global model.
        logs: whether clients report what their modules log.
    """

    def __init__(self, device: torch.device, logs: bool) -> None:
        self._zeros = torch.zeros(2, dtype=exact_dtype(device), device=device)
        #: the sums of weights and of weighted values, by tag
        self._means = {"train/loss": self._zeros.clone(), "train/learning_rate": self._zeros.clone()}
        self._counts = {"clients": 0, "lost": 0, "failed": 0, "up": 0, "down": 0}
        self._logs = logs

    def add(self, update: ClientUpdate, weight: float, down: int) -> None:
        """Count a client.

        Args:
            update: what it sent.
            weight: its weight before normalisation.
            down: how many bytes it received.
        """
        rate = {} if update.learning_rate is None else {"train/learning_rate": update.learning_rate}
        loss = {"train/loss": update.metrics["loss"]} if "loss" in update.metrics else {}
        values: dict[str, float | Tensor] = {**update.logged, **rate, **loss}
        for name, value in values.items():
            mean = self._means.setdefault(name, self._zeros.clone())
            mean[0] += weight
            mean[1] += weight * value
        self._counts["clients"] += 1
        self._counts["up"] += (update.num_bytes or 0) + state_bytes(update.extras)
        self._counts["down"] += down

    def lose(self, lost: LostClient, down: int) -> None:
        """Count a client that is lost, but that was sent the model."""
        self._counts["lost"] += 1
        self._counts["failed"] += not lost.planned
        self._counts["down"] += down

    def read(self, doubts: Tensor | None = None, remembered: int = 0) -> "Totals":
        """Return the sums over all ranks. On a GPU, this is when the host waits for the round's clients.

        Args:
            doubts: how many of the counted clients turned out to have failed, as a tensor on the device.
            remembered: how many entries of clients' memories this rank has to pass to the others.
        """
        device = self._zeros.device
        names = sorted({*gather_notes(list(self._means), device)} if self._logs else self._means)
        counts = to_device(torch.tensor([*self._counts.values(), remembered], dtype=self._zeros.dtype), device)
        means = [self._means.get(name, self._zeros) for name in names]
        late = self._zeros[:1] if doubts is None else doubts.to(self._zeros).reshape(1)
        numbers = torch.cat([counts, late, *means])
        sum_over_ranks(numbers)
        clients, lost, failed, up, down, remembered_by_all, found, *sums = numbers.tolist()
        pairs = zip(names, sums[::2], sums[1::2], strict=True)
        means_by_name = {name: total / weight for name, weight, total in pairs if weight}
        return Totals(
            clients=int(clients),
            lost=int(lost),
            failed=int(failed + found),
            up=int(up),
            down=int(down),
            remembered=int(remembered_by_all),
            means=means_by_name,
        )


@dataclass(frozen=True)
class Totals:
    """Sums over the clients of a round, on all ranks.

    Args:
        clients: how many clients were received.
        lost: how many were lost.
        failed: how many of the round's clients failed, without planned losses.
        up: bytes from clients to the server.
        down: bytes from the server to clients.
        remembered: entries of clients' memories that a rank has to pass to the others.
        means: weighted means of what clients reported, by tag.
    """

    clients: int
    lost: int
    failed: int
    up: int
    down: int
    remembered: int
    means: dict[str, float]

    def values(self, bytes_so_far: dict[str, int]) -> dict[str, float]:
        """Return the values to log, and add the round's bytes to ``bytes_so_far``."""
        bytes_so_far["up"] += self.up
        bytes_so_far["down"] += self.down
        return self.means | {
            "round/clients": float(self.clients),
            "bytes/up": float(self.up),
            "bytes/down": float(self.down),
            "bytes/up_total": float(bytes_so_far["up"]),
            "bytes/down_total": float(bytes_so_far["down"]),
        }
