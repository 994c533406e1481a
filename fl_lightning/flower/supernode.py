"""Flower's SuperNode for nodes on the server's own machine: it asks for messages more often and answers them faster.

A SuperNode that has nothing to do asks its SuperLink for messages every 3 seconds, and Flower has no setting to change
that. Over a network, 3 seconds are right. On one machine, a round of a small model takes less time than the wait.
"""

import sys
import time
from types import SimpleNamespace

from fl_lightning.flower.launcher import Launcher

#: how often to ask, in seconds
_PAUSE = 0.2


def main() -> None:
    """Run ``flower-supernode``; the options are the same."""
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    vars(start_client_internal)["time"] = SimpleNamespace(sleep=sleep_briefly)
    sys.argv[0] = "flower-supernode"
    with Launcher():
        flower_supernode()


def sleep_briefly(seconds: float) -> None:
    """Sleep for a shorter time than Flower asks for, so that a new message is noticed soon."""
    time.sleep(min(seconds, _PAUSE))


if __name__ == "__main__":
    main()
