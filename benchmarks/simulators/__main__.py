"""Compare fl_lightning with a tight plain PyTorch loop and with other simulators, round by round, in turns.

    python benchmarks/simulators [--turns 10] [--tasks T1 T2 T3] [--contestants plain ours ...] [--data DIR]

T1 trains an MLP 784-200-10 with 100 clients of 600 samples, 10 of them per round, one epoch in batches of 50. T2 does
the same with FedNNNN's MNIST CNN. T3 is T1 with all 100 clients in every round. A round includes the evaluation of the
global model on 10,000 images.

Every contestant runs in a process of its own. All start from the same weights and train the same clients on the same
batches, so all end with the same weights up to rounding, which is checked. Only one computes at a time: all have turn
0, which is a warm-up, then all have turn 1, and so on. A turn is one round, or five rounds of T1, the first of which is
not counted: such short rounds are slower while the caches hold the data of other contestants. A ratio is the time per
round divided by that of the plain loop in the same turn.

Other simulators have environments of their own, which benchmarks/peers.sh sets up; those that are missing are skipped
and named. The data is MNIST if --data names a folder with MNIST/raw, and otherwise synthetic.

Results go to benchmarks/results/DATE: table.md, ratios.png and results.json.
"""

import argparse
import datetime
import os
import signal
import sys
import tempfile
from pathlib import Path

import driver
import report
from contestants import CONTESTANTS, HERE
from tasks import TASKS, Data, Sizes, draw


def main() -> None:
    arguments = _arguments()
    keys = [key for key in CONTESTANTS if key == "plain" or key in arguments.contestants]
    sizes = Sizes(arguments.clients, arguments.samples, arguments.test_samples)
    data = Data(arguments.data, sizes)
    today = datetime.date.today().isoformat()
    load = f"{os.getloadavg()[0]:.1f}"
    rows: dict[str, list[driver.Row]] = {}
    for task in arguments.tasks:
        print(f"{task}: {TASKS[task].title}", flush=True)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            turns, rounds = arguments.turns + 1, TASKS[task].turn
            draw(TASKS[task], data, sizes, turns * rounds, arguments.threads).save(folder / "contest.pt")
            rows[task] = driver.run(
                [key for key in keys if task in CONTESTANTS[key].tasks],
                folder / "contest.pt",
                folder,
                turns,
                rounds,
                arguments.threads,
            )
    versions = {name: value for task in rows.values() for row in task for name, value in row.versions.items()}
    about = {
        "date": today,
        **report.machine(),
        "threads per contestant": str(arguments.threads),
        "load average before the start": load,
        "data": data.name,
        "sizes": f"{sizes.clients} clients × {sizes.samples}, batches of {sizes.batch}, evaluation on {sizes.test}",
        "turns": f"{arguments.turns}, after one that is not counted",
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
    }
    results = report.Results(rows, about)
    out = arguments.out or HERE.parent / "results" / today
    report.write(results, out)
    print(f"\n{report.table(results)}\nwritten to {out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/simulators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=int, default=10, help="timed turns")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads per contestant")
    parser.add_argument("--data", type=Path, help="folder that holds MNIST/raw; by default, the data is synthetic")
    parser.add_argument("--out", type=Path, help="folder for the results; by default, benchmarks/results/DATE")
    parser.add_argument("--clients", type=int, default=Sizes.clients, help="number of clients")
    parser.add_argument("--samples", type=int, default=Sizes.samples, help="training samples per client")
    parser.add_argument("--test-samples", type=int, default=Sizes.test, help="samples of the evaluation")
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that contestants end and files are removed
    main()
