"""The contestant's end of the benchmark: wait for a turn, run one round, report the accuracy.

A contestant blocks on its standard input between rounds, so that only one contestant computes at a time. The driver
measures the seconds from its command to the report, which includes everything that the simulator does per round.
"""

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import torch
from contest import Contest
from torch import nn


class Turns:
    """The connection to the driver. Whatever libraries print goes to the log instead.

    Args:
        packages: packages whose versions are reported.

    The command line is: the file of the contest, the file for the final weights, and options of the contestant.
    """

    def __init__(self, *packages: str) -> None:
        self.contest_file, self.weights_file = Path(sys.argv[1]), Path(sys.argv[2])
        self.options = sys.argv[3:]
        self._versions = {package: version(package) for package in packages}
        self._reports = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._started = False

    def contest(self, processes: int = 1) -> Contest:
        """Return the contest, and share its threads among the contestant's processes."""
        contest = Contest.load(self.contest_file)
        torch.set_num_threads(max(1, contest.threads // processes))
        return contest

    def wait(self, accuracy: float | None = None) -> None:
        """Report the last round, if there was one, and wait for the next."""
        if self._started:
            self._send(accuracy=accuracy)
        else:
            self._started = True
            self._send(versions=self._versions | {"torch": torch.__version__})
        if not sys.stdin.readline():
            sys.exit("the driver has closed the connection")

    def finish(self, accuracy: float | None, net: nn.Module) -> None:
        """Report the last round, write the final weights and wait until the driver has read the peak memory."""
        self._send(accuracy=accuracy)
        torch.save([parameter.detach().cpu() for parameter in net.parameters()], self.weights_file)
        sys.stdin.readline()
        self._send(finished=True)

    def skip(self, reason: str) -> NoReturn:
        """Report why this contestant cannot take part, and end."""
        self._send(skipped=reason)
        sys.exit(0)

    def _send(self, **report: object) -> None:
        self._reports.write(json.dumps(report) + "\n")
