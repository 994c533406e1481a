"""What a node remembers about its clients, in a folder that survives restarts of the node."""

import os
import re
from pathlib import Path

import torch

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.flower.protocol import Memory, Version

#: how many versions of a client's memory are kept, so that the server can resume an earlier round
_VERSIONS = 10


class NodeMemory:
    """A folder with one file per client and version. A version belongs to a round, so a repeated round replaces it.

    Args:
        folder: the folder; it is created when something is remembered.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, client: int, version: Version | None) -> Memory:
        """Return what was remembered after a round; nothing if the version is None."""
        if version is None:
            return {}
        path = self._path(client, version)
        if not path.is_file():
            raise MisconfigurationError(
                f"the node has no memory of client {client} after round {version.round + 1}: it keeps only the last"
                f" {_VERSIONS} versions, and {path} is missing: resume from a later checkpoint, or start a new run"
            )
        return torch.load(path, weights_only=True)

    def save(self, client: int, version: Version, memory: Memory) -> None:
        """Write what is to be remembered, completely or not at all, and remove the oldest versions."""
        path = self._path(client, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save({key: {n: v.detach().cpu() for n, v in values.items()} for key, values in memory.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        versions = sorted(path.parent.glob("round_*.pt"), key=lambda file: file.stat().st_mtime_ns)
        for old in versions[:-_VERSIONS]:
            old.unlink(missing_ok=True)

    def versions(self, client: int) -> list[int]:
        """Return the rounds, counted from 0, whose memory of a client is kept."""
        names = [file.name for file in (self.folder / f"client_{client:06d}").glob("round_*.pt")]
        return sorted(int(re.findall(r"\d+", name)[0]) for name in names)

    def _path(self, client: int, version: Version) -> Path:
        return self.folder / f"client_{client:06d}" / f"round_{version.round:06d}_{version.run:016x}.pt"
