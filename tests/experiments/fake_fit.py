"""A quick stand-in for ``fl-lightning fit``: FOLDER ROUNDS [fail|hang|late] [--ckpt_path FILE].

It fails or hangs after two rounds, or begins late, if asked to.
"""

import os
import sys
import time
from pathlib import Path

from tests.experiments.records import write_events

folder, rounds, *rest = sys.argv[1:]
last = Path(folder, "checkpoints", "last.ckpt")
resumed = "--ckpt_path" in rest
first = int(last.read_text()) if resumed else 0
print(f"threads {os.environ['OMP_NUM_THREADS']}, from round {first}", flush=True)
last.parent.mkdir(exist_ok=True)
if "late" in rest:
    time.sleep(0.6)
for number in range(first, int(rounds)):
    if not resumed and number == 2 and "fail" in rest:
        print("\rRound 3 | bar\rRound 3 | bar\nValueError: too bad", flush=True)
        sys.exit(1)
    if not resumed and number == 2 and "hang" in rest:
        time.sleep(60)
    write_events(
        Path(folder), {"round/clients": [1.0]}, start=1000.0 * (number + 1), first=number, resumed=number == first > 0
    )
    last.write_text(str(number + 1))
