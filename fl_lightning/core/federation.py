"""The settings of a federation whose clients are on other machines."""

from dataclasses import dataclass
from typing import Literal

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number


@dataclass(frozen=True)
class FederationSettings:
    """Settings that only a federation on several machines uses; a simulation ignores them.

    Args:
        num_clients: K, the number of clients that the run waits for; by default, the partition's number of clients.
        wait: how many seconds the run waits for its clients before the first round.
        timeout: how many seconds the server waits for the clients of a round. After that, the round goes on with the
            clients that have answered, if there are at least ``server.min_clients`` of them.
        client_memory: where the memory of a client, such as SCAFFOLD's control variates, is kept: on the client's
            ``node``, or on the ``server``, which sends it with the model.
    """

    num_clients: int | None = None
    wait: float = 300.0
    timeout: float = 600.0
    client_memory: Literal["node", "server"] = "node"

    def __post_init__(self) -> None:
        if self.num_clients is not None:
            check_number("num_clients", self.num_clients, at_least=1, setting="federation.num_clients")
        for name in ("wait", "timeout"):
            check_number(name, getattr(self, name), above=0, setting=f"federation.{name}")
        if self.client_memory not in ("node", "server"):
            raise MisconfigurationError(
                f"client_memory={self.client_memory!r}: set federation.client_memory to node or server"
            )
