"""How packets get from the server to the nodes and back."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from fl_lightning.flower.packet import Packet


@dataclass(frozen=True)
class Undelivered:
    """Says that a message will never be answered.

    Args:
        reason: what happened, in one line.
    """

    reason: str


class Post(ABC):
    """Delivers packets to nodes. It hides the transport's retries, encryption and authentication."""

    @abstractmethod
    def nodes(self) -> dict[int, str]:
        """Return the nodes that are connected now, each with its session: a text that differs after every start."""

    @abstractmethod
    def send(self, node: int, kind: str, packet: Packet, seconds: float) -> str:
        """Send a packet and return the number under which its answer is collected.

        Args:
            node: the node to send it to.
            kind: what the node should do: ``query``, ``train`` or ``evaluate``.
            packet: the packet.
            seconds: how long the packet and its answer are kept.
        """

    @abstractmethod
    def collect(self, messages: Iterable[str]) -> dict[str, Packet | Undelivered]:
        """Return the answers that have arrived, without waiting for the others. Each answer is returned once."""
