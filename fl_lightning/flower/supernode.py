"""Flower's SuperNode, asking for messages more often: for nodes on the server's own machine.

A SuperNode that has nothing to do asks its SuperLink every 3 seconds, and Flower has no setting for it. Over a network
that is right. On one machine, where a round of a small model takes less than that, it is most of the round.
"""

import sys
import time
from types import SimpleNamespace

#: how often to ask, in seconds
_PAUSE = 0.2


def main() -> None:
    """Run ``flower-supernode``; the options are the same."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    vars(start_client_internal)["time"] = SimpleNamespace(sleep=sleep_briefly)
    sys.argv[0] = "flower-supernode"
    flower_supernode()


def sleep_briefly(seconds: float) -> None:
    """Sleep, but not longer than it takes to notice a new message soon."""
    time.sleep(min(seconds, _PAUSE))


if __name__ == "__main__":
    main()
