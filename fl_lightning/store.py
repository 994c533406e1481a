"""What is remembered of each client from round to round: control variates, statistics, angles.

One store serves every algorithm: by client number, made when first needed, in memory or in a folder, in the checkpoint.
"""

import os
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from fl_lightning.distributed import gather_objects
from fl_lightning.state import StateDict


class ClientStore:
    """Tensors by client.

    In a distributed run a client is trained by whichever rank has time. What a rank alone has put is passed to the
    others by :meth:`exchange`, which every rank calls once a round; what all ranks compute alike needs no exchange.

    Args:
        folder: where to keep the tensors, one file a client; all ranks must see it. By default they stay in memory.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self._memory: dict[int, StateDict] = {}
        # In a folder an entry is kept in two versions: a killed round is resumed from the one before it.
        self._versions: dict[int, int] = {}
        self._new: set[int] = set()

    def get(self, client: int, device: torch.device | None = None) -> StateDict | None:
        """What was put last for the client; None if nothing was."""
        if self.folder is None:
            values = self._memory.get(client)
        elif client in self._versions:
            values = self._read(client)
        else:
            values = None
        if values is None or device is None:
            return values
        return {name: value.to(device) for name, value in values.items()}

    def put(self, client: int, values: StateDict) -> None:
        """Replaces what is kept for the client."""
        self._new.add(client)
        if self.folder is None:
            self._memory[client] = {name: value.detach() for name, value in values.items()}
            return
        version = self._versions.get(client, 0) + 1
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(client, version)
        part = path.with_suffix(f".{os.getpid()}.part")  # several ranks may put the same
        torch.save({name: value.detach().cpu() for name, value in values.items()}, part)
        part.replace(path)
        self._path(client, version - 2).unlink(missing_ok=True)
        self._versions[client] = version

    def clients(self) -> list[int]:
        """Of whom something is known, in order."""
        return sorted(self._memory if self.folder is None else self._versions)

    def begin_round(self) -> None:
        """Called before a round: what is put from now on is new."""
        self._new.clear()

    def exchange(self) -> None:
        """Gives every rank what the others have put in this round."""
        if self.folder is not None:
            for client, version in gather_objects([(client, self._versions[client]) for client in sorted(self._new)]):
                self._versions[client] = version
            return
        mine = [(client, {k: v.cpu() for k, v in self._memory[client].items()}) for client in sorted(self._new)]
        for client, values in gather_objects(mine):
            if client not in self._new:
                self._memory[client] = values

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint: the tensors, or which versions in the folder are meant."""
        return {"memory": dict(self._memory), "versions": dict(self._versions)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._memory = dict(state_dict["memory"])
        self._versions = dict(state_dict["versions"])
        if self.folder is None and self._versions:
            raise MisconfigurationException(
                "the checkpoint keeps the clients' state in a folder: set server.client_folder to that folder"
            )

    def _read(self, client: int) -> StateDict:
        path = self._path(client, self._versions[client])
        if not path.is_file():
            raise MisconfigurationException(
                f"{path} is missing: the folder keeps the last two rounds of a client's state,"
                " resume from the last checkpoint"
            )
        return torch.load(path, weights_only=True)

    def _path(self, client: int, version: int) -> Path:
        assert self.folder is not None
        return self.folder / f"client_{client:06d}_{version}.pt"
