"""What is remembered about each client from round to round: control variates, statistics, personal models.

The server owns the only store of a run: it opens, exchanges and saves the store. An entry is keyed by its client and
its writer, so an aggregator and several client callbacks can each remember something about the same client.
"""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fl_lightning.core.distributed import gather_messages, gather_notes, is_distributed
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.saved_file import PART, DamagedFileError, read_saved_file
from fl_lightning.core.shelf import Shelf
from fl_lightning.core.state import StateDict
from fl_lightning.core.transfer import to_device


class ClientStore:
    """Tensors by writer and client.

    In a distributed run, a client may be trained by any rank. Entries that only one rank has put are passed to the
    others by :meth:`exchange`, which all ranks call together. Entries that all ranks compute alike need no exchange.

    Args:
        folder: folder for the tensors, with one file per client, writer and version; all ranks must have access to it.
            By default, tensors stay in memory: on the GPU while they fit there, otherwise in pinned memory of the host.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self._entries: dict[str, dict[int, StateDict]] = {}
        # A folder keeps three versions of an entry: the last two checkpoints need one each, and a round that is killed
        # before its checkpoint leaves one more.
        self._versions: dict[str, dict[int, int]] = {}
        self._new: set[tuple[str, int]] = set()
        #: the tensors, or nothing if they are already in the folder
        self._staged: dict[tuple[str, int], StateDict] = {}
        self._shelf = Shelf()

    def part(self, writer: str) -> "ClientMemory":
        """Return the part of the store that one writer reads and writes."""
        return ClientMemory(self, writer)

    def get(self, writer: str, client: int, device: torch.device | None = None) -> StateDict | None:
        """Return the tensors that the writer last put for the client, or None.

        Args:
            writer: the writer that put them.
            client: the client's number.
            device: device for the tensors; by default, they are returned where they are kept.
        """
        if not self.has(writer, client):
            return None
        values = self._entries[writer][client] if self.folder is None else self._read(writer, client)
        if device is None or device.type == "cpu":
            self._shelf.settle()
        return values if device is None else {name: to_device(value, device) for name, value in values.items()}

    def has(self, writer: str, client: int) -> bool:
        """Return whether the writer has put tensors for the client."""
        kept = self._entries if self.folder is None else self._versions
        return client in kept.get(writer, {})

    def put(self, writer: str, client: int, values: StateDict) -> None:
        """Replace the writer's tensors for the client."""
        self._adopt(writer, client, self._set_aside(writer, client, values))

    def stage(self, writer: str, client: int, values: StateDict) -> None:
        """Replace the writer's tensors for the client when :meth:`commit` is called.

        A round that fails must not change what is remembered. With a folder, the tensors are written at once, so that a
        large round does not fill the memory.
        """
        self._staged[writer, client] = self._set_aside(writer, client, values)

    def commit(self) -> None:
        """Make the tensors that were staged in this round the current ones."""
        for (writer, client), values in self._staged.items():
            self._adopt(writer, client, values)
        self._staged.clear()

    @property
    def num_new(self) -> int:
        """How many entries this rank has put or staged in this round."""
        return len(self._new) + len(self._staged)

    def clients(self, writer: str) -> list[int]:
        """Return the clients for which the writer has put tensors, sorted by number."""
        kept = self._entries if self.folder is None else self._versions
        return sorted(kept.get(writer, {}))

    def check_empty(self) -> None:
        """Reject a folder with entries of another run, which a new run would overwrite."""
        if self.folder is not None and not self._versions and any(self.folder.glob("client_*.pt")):
            raise MisconfigurationError(
                f"client_folder={self.folder} holds the clients' state of another run: resume that run, or set"
                " server.client_folder to another folder"
            )

    def remove_incomplete(self) -> None:
        """Remove files that a killed process did not complete. Called on one rank, before the first round of a fit."""
        for stale in self.folder.glob(f"client_*{PART}") if self.folder is not None else ():
            stale.unlink(missing_ok=True)

    def begin_round(self) -> None:
        """Start a round: entries put from now on are new to the other ranks. What a failed round staged is dropped."""
        self._new.clear()
        self._staged.clear()

    def move_to(self, device: torch.device) -> None:
        """Move the tensors to the model's device, as far as they fit there. Called before the first round of a fit."""
        self._shelf.settle()
        self._shelf = Shelf()
        for kept in self._entries.values():
            for client, values in kept.items():
                kept[client] = self._shelf.place({name: to_device(value, device) for name, value in values.items()})

    def exchange(self, device: torch.device) -> None:
        """Pass the entries that each rank has put in this round to the other ranks, from device to device."""
        if not is_distributed():
            return
        new = sorted(self._new)
        if self.folder is not None:
            for writer, client, version in gather_notes([(w, c, self._versions[w][c]) for w, c in new], device):
                self._versions.setdefault(writer, {})[client] = version
            return
        for (writer, client), entry in gather_messages([((w, c), self._entries[w][c]) for w, c in new], device):
            if (writer, client) not in self._new:
                kept = self._entries.setdefault(writer, {})
                kept[client] = self._shelf.place(entry, kept.get(client))

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint keeps: the tensors, or their versions in the folder."""
        self._shelf.settle()
        return {
            "entries": {writer: dict(kept) for writer, kept in self._entries.items()},
            "versions": {writer: dict(kept) for writer, kept in self._versions.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._entries = {writer: dict(kept) for writer, kept in state_dict["entries"].items()}
        self._versions = {writer: dict(kept) for writer, kept in state_dict["versions"].items()}
        if self.folder is None and self._versions:
            raise MisconfigurationError(
                "the checkpoint keeps the clients' state in a folder: set server.client_folder to that folder"
            )
        if self.folder is not None:  # move what a run without a folder kept in memory
            entries, self._entries = self._entries, {}
            for writer, kept in entries.items():
                for client, values in kept.items():
                    self.put(writer, client, values)

    def _set_aside(self, writer: str, client: int, values: StateDict) -> StateDict:
        """Write the tensors to the folder, under a name that is not read yet, and return what stays in memory."""
        if self.folder is None:
            return values
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save({name: value.detach().cpu() for name, value in values.items()}, self._part(writer, client))
        return {}

    def _adopt(self, writer: str, client: int, values: StateDict) -> None:
        self._new.add((writer, client))
        if self.folder is None:
            kept = self._entries.setdefault(writer, {})
            kept[client] = self._shelf.place(values, kept.get(client))
            return
        part, version = self._part(writer, client), self._next_version(writer, client)
        part.replace(self._path(writer, client, version))
        self._path(writer, client, version - 3).unlink(missing_ok=True)
        self._versions.setdefault(writer, {})[client] = version

    def _next_version(self, writer: str, client: int) -> int:
        return self._versions.get(writer, {}).get(client, 0) + 1

    def _part(self, writer: str, client: int) -> Path:
        """Return the file for a version that is not complete or not committed yet.

        Several ranks may put the same entry. A run that is killed and resumed uses the same names again.
        """
        path = self._path(writer, client, self._next_version(writer, client))
        return path.with_suffix(f".{dist.get_rank() if is_distributed() else 0}{PART}")

    def _read(self, writer: str, client: int) -> StateDict:
        path = self._path(writer, client, self._versions[writer][client])
        if not path.is_file():
            raise MisconfigurationError(
                f"{path} is missing: the folder keeps what the last two checkpoints need, so resume from one of them"
            )
        try:
            return read_saved_file(path)
        except DamagedFileError as error:
            raise MisconfigurationError(
                f"{path} {error}: resume from the previous checkpoint, or start the run again"
            ) from error

    def _path(self, writer: str, client: int, version: int) -> Path:
        assert self.folder is not None
        name = re.sub(r"[^A-Za-z0-9]+", "-", writer)
        return self.folder / f"client_{client:06d}_{name}_{zlib.crc32(writer.encode()):08x}_{version}.pt"


@dataclass(frozen=True)
class ClientMemory:
    """One writer's part of a :class:`ClientStore`."""

    store: ClientStore
    writer: str

    def get(self, client: int, device: torch.device | None = None) -> StateDict | None:
        """Return the tensors that were last put for the client, or None."""
        return self.store.get(self.writer, client, device)

    def put(self, client: int, values: StateDict) -> None:
        """Replace the tensors for the client."""
        self.store.put(self.writer, client, values)

    def clients(self) -> list[int]:
        """Return the clients with stored tensors, sorted by number."""
        return self.store.clients(self.writer)
