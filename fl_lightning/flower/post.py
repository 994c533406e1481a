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
    def send_all(self, kind: str, packets: Iterable[tuple[int, Packet]], seconds: float) -> list[str]:
        """Send packets and return the numbers under which their answers are collected, in the same order.

        Args:
            kind: what the nodes should do: ``query``, ``train`` or ``evaluate``.
            packets: nodes and what to send to them. Consecutive packets for one node may travel together.
            seconds: how long the packets and their answers are kept.
        """

    def send(self, node: int, kind: str, packet: Packet, seconds: float) -> str:
        """Send a single packet; see :meth:`send_all`."""
        (number,) = self.send_all(kind, [(node, packet)], seconds)
        return number

    @abstractmethod
    def collect(self, messages: Iterable[str]) -> dict[str, Packet | Undelivered]:
        """Return the answers that have arrived, without waiting for the others. Each answer is returned once."""
