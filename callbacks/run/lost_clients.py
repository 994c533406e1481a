"""What happens when a round loses clients."""

from typing import Literal

import torch

from fl_lightning._lightning.names import rank_zero_warn
from fl_lightning.core.distributed import gather_notes
from fl_lightning.core.errors import RoundFailedError
from fl_lightning.core.update import LostClient

OnError = Literal["raise", "drop"]


class LostClients:
    """The clients of a round that are lost, and the decision whether the round can go on without them.

    All ranks of a distributed run decide alike, because they decide when all of them are done with their clients.

    Args:
        number: the round's number, counted from 0.
        on_error: ``raise`` ends the run when a client fails, ``drop`` goes on without it.
        min_clients: how many clients must be left.
    """

    def __init__(self, number: int, on_error: OnError, min_clients: int) -> None:
        self._round = number + 1
        self._on_error = on_error
        self._min_clients = min_clients
        self._failed: list[LostClient] = []

    def add(self, lost: LostClient) -> bool:
        """Note a client of this rank. Return whether the rank's other clients need not train any more."""
        if not lost.planned:
            self._failed.append(lost)
        return not lost.planned and self._on_error == "raise"

    def decide(self, left: int, lost: int, failed: int, device: torch.device) -> None:
        """Raise an error if the round cannot be completed. Called on every rank, with numbers over all ranks.

        Args:
            left: how many clients are not lost.
            lost: how many are.
            failed: how many of the lost ones failed, other than as planned.
            device: device of this rank.
        """
        if failed:
            own = sorted(self._failed, key=lambda client: client.client)
            everyone = sorted(gather_notes([(client.client, client.reason) for client in own], device))
            if self._on_error == "raise":
                client, reason = everyone[0]
                cause = next((item.error for item in own if item.client == client), None)
                raise RoundFailedError(f"client {client} failed in round {self._round}: {reason}") from cause
            for client, reason in everyone:
                rank_zero_warn(f"client {client} was dropped from round {self._round}: {reason}")
        if left < self._min_clients:
            raise RoundFailedError(
                f"round {self._round} has lost {lost} of its {left + lost} clients, and server.min_clients="
                f"{self._min_clients}: lower server.min_clients, or select more clients per round"
            )
