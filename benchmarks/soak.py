"""Runs many rounds of the demo and prints memory, threads and open files now and then: all of them must stay the same.

Further options are passed to ``fl-lightning fit``, for example ``--server.aggregator Scaffold``.
"""

import argparse
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from fl_lightning.callbacks import RoundCallback

DEMO = Path(__file__).parent.parent / "configs" / "demo.yaml"
SHORT = ["--client.epochs", "1", "--trainer.enable_progress_bar", "false"]
SHORT += ["--client.dropout", "0.1"]


class Probe(RoundCallback):
    """Prints what the process uses after every ``every`` rounds."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Print a row of the table."""
        rounds = trainer.current_epoch + 1
        if rounds % self.every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
            files = len(os.listdir("/proc/self/fd"))
            print(f"| {rounds} | {memory:.0f} | {threading.active_count()} | {files} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--every", type=int, default=20)
    options, others = parser.parse_known_args()
    from fl_lightning.cli.main import main as fl_lightning

    print("| rounds | memory in MB | threads | open files |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        probe = ["--trainer.callbacks+=soak.Probe", "--trainer.callbacks.every", str(options.every)]
        rounds = ["--trainer.max_epochs", str(options.rounds)]
        sys.argv = ["fl-lightning", "fit", "--config", str(DEMO), *SHORT, *rounds, *probe, *others]
        fl_lightning()


if __name__ == "__main__":
    main()
