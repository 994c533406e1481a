"""What happens when a round loses clients."""

import traceback
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from fl_lightning._lightning.names import Trainer, rank_zero_info
from fl_lightning.callbacks.run.tally import Totals
from fl_lightning.core.distributed import gather_notes
from fl_lightning.core.errors import RoundFailedError
from fl_lightning.core.run_folder import RunFolder, short_path
from fl_lightning.core.soundness import SoundnessCheck
from fl_lightning.core.update import LostClient


class LostClients:
    """The clients of a round that are lost, and the decision whether the round can go on without them.

    All ranks of a distributed run reach the same decision, because they wait until all of them are done.

    Args:
        number: the round's number, counted from 0.
        on_error: ``raise`` ends the run when a client fails, ``drop`` goes on without it.
        min_clients: how many clients must be left.
        folder: the folder of the run, which keeps the tracebacks; None if there is no folder.
    """

    def __init__(
        self, number: int, on_error: Literal["raise", "drop"], min_clients: int, folder: RunFolder | None
    ) -> None:
        self._round = number + 1
        self._on_error = on_error
        self._min_clients = min_clients
        self._folder = folder
        #: the clients of this rank that failed, without planned losses
        self._failed: list[LostClient] = []

    def add(self, lost: LostClient) -> bool:
        """Note a client of this rank. Return whether the rank's other clients need not train any more."""
        if lost.planned:
            return False
        if lost.error is not None:
            lost = self._keep_traceback(lost, lost.error)
        self._failed.append(lost)
        return self._on_error == "raise"

    def decide(self, totals: Totals, is_unsound: SoundnessCheck, device: torch.device) -> None:
        """Raise an error if the round cannot be completed. Called on every rank when its clients are done.

        Args:
            totals: sums over the clients of all ranks.
            is_unsound: the check of this rank's updates.
            device: device of this rank.
        """
        if totals.failed:
            self._failed += is_unsound.confirmed_doubts()
            reasons = sorted(gather_notes([(client.client, client.reason) for client in self._failed], device))
            if self._on_error == "raise":
                number, reason = reasons[0]
                cause = next((client.error for client in self._failed if client.client == number), None)
                raise RoundFailedError(f"client {number} failed in round {self._round}: {reason}") from cause
            for number, reason in reasons:
                rank_zero_info(f"client {number} was dropped from round {self._round}: {reason}")
        if totals.lost and totals.clients < self._min_clients:  # if no client was lost, the selection chose this few
            raise RoundFailedError(
                f"round {self._round} has lost {totals.lost} of its {totals.clients + totals.lost} clients, but"
                f" server.min_clients={self._min_clients}: lower server.min_clients, or select more clients per round"
            )

    def _keep_traceback(self, lost: LostClient, error: Exception) -> LostClient:
        """Write the traceback to the run's folder. Unless the error is to be raised, drop it and its frames."""
        reason = lost.reason
        if self._folder is not None:
            path = self._folder.client_errors
            text = "".join(traceback.format_exception(error))
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.write(f"Client {lost.client}, round {self._round}\n{text}\n")
                reason = f"{reason} (traceback in {short_path(path)})"
            except OSError:  # a full disk must not hide what happened
                pass
        return replace(lost, reason=reason, error=error if self._on_error == "raise" else None)


def run_folder(trainer: Trainer) -> RunFolder | None:
    """Return the folder of a run, or None if it keeps no files. Every rank must call this: rank zero sends the name."""
    log_dir = trainer.log_dir
    keeps_files = trainer.loggers or trainer.checkpoint_callbacks
    return RunFolder(Path(log_dir).resolve()) if keeps_files and log_dir is not None else None
