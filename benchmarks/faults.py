"""Injects faults into runs of the demo and prints how many of them did harm. ``--kills 0`` is a quick look.

Kills and signals come at random moments of runs in forked processes; damaged files are read in this process.
"""

import argparse
import atexit
import multiprocessing
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from fl_lightning.callbacks.run.resumable import read_checkpoint
from fl_lightning.cli import app, main  # noqa: F401  so that forked processes need not import Lightning
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder

DEMO = Path(__file__).parent.parent / "configs" / "demo.yaml"
SHORT = ["--trainer.max_epochs", "6", "--client.epochs", "1", "--client.limit_train_batches", "4"]
SHORT += ["--trainer.limit_val_batches", "1", "--trainer.enable_progress_bar", "false"]
SETUPS = {
    "FedAvg": [],
    "SCAFFOLD": ["--server.aggregator", "Scaffold", "--server.client_folder", "clients"],
    "FedNNNN": ["--server.aggregator", "FedNNNN", "--server.aggregator.beta", "1", "--server.aggregator.gamma", "0.8"],
}


@dataclass
class Count:
    """How many faults of a kind were injected, and how they ended."""

    fault: str
    survived_means: str
    injected: int = 0
    survived: int = 0

    def row(self) -> str:
        lost = self.injected - self.survived
        return f"| {self.fault} | {self.injected} | {self.survived} | {lost} | {self.survived_means} |"


class Command:
    """``fl-lightning fit`` in a forked process."""

    def __init__(self, folder: Path, arguments: list[str], prepare: Callable[[], None] = lambda: None) -> None:
        self.output = folder / "output.txt"
        self.begin = time.monotonic()
        context = multiprocessing.get_context("fork")
        self.begun = context.Event()
        self.process = context.Process(target=self._run, args=(folder, arguments, prepare))
        self.process.start()

    def _run(self, folder: Path, arguments: list[str], prepare: Callable[[], None]) -> None:
        atexit._clear()  # an interrupted command calls exit functions, which would remove this program's own folder
        os.chdir(folder)
        descriptor = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(descriptor, number)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)
        sys.argv = ["fl-lightning", "fit", "--config", str(DEMO), *SHORT, *arguments]
        prepare()
        self.begun.set()
        main.main()

    def wait(self) -> int:
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode

    def end(self, number: signal.Signals, after: float) -> int:
        """Send a signal some seconds after the command has begun, unless it has ended; return the exit code."""
        self.begun.wait()
        self.process.join(after)
        if self.process.is_alive():
            assert self.process.pid is not None
            os.kill(self.process.pid, number)
        return self.wait()


def last_of(folder: Path) -> RunFolder | None:
    found = sorted(folder.glob("runs/demo/*/checkpoints/last.ckpt"))
    return RunFolder.of_checkpoint(found[-1]) if found else None


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return torch.load(run.checkpoint, weights_only=True)["state_dict"]


def kills(count: int, root: Path, generator: random.Random) -> Count:
    result = Count("SIGKILL at a random moment, then resumed", "the run ended with the same bits as an undisturbed one")
    reference: dict[str, tuple[dict[str, torch.Tensor], float]] = {}
    for name, arguments in SETUPS.items() if count else ():
        folder = root / f"undisturbed_{name}"
        folder.mkdir()
        begin = time.monotonic()
        assert Command(folder, arguments).wait() == 0, (folder / "output.txt").read_text()
        run = last_of(folder)
        assert run is not None
        reference[name] = weights(run), time.monotonic() - begin
    attempt = 0
    while result.injected < count:
        name = list(SETUPS)[attempt % len(SETUPS)]
        expected, seconds = reference[name]
        folder = root / f"killed_{attempt}"
        folder.mkdir()
        attempt += 1
        killed, code = 0, -9
        while code != 0:
            run = last_of(folder)
            if run is None:
                shutil.rmtree(folder / "runs", ignore_errors=True)
                shutil.rmtree(folder / "clients", ignore_errors=True)
            resume = ["--ckpt_path", str(run.checkpoint)] if run else []
            again = killed < 3 and result.injected + killed < count
            after = generator.uniform(0, seconds) if again else 600.0
            code = Command(folder, [*SETUPS[name], *resume]).end(signal.SIGKILL, after)
            killed += code == -signal.SIGKILL
            assert code in (0, -signal.SIGKILL), (folder / "output.txt").read_text()
        run = last_of(folder)
        assert run is not None
        ended = weights(run)
        result.injected += killed
        result.survived += killed * all(torch.equal(ended[key], value) for key, value in expected.items())
        shutil.rmtree(folder)
    return result


def signals(count: int, root: Path, generator: random.Random) -> Count:
    result = Count("Ctrl-C or SIGTERM at a random moment", "exit code 130 or 143, one line, no traceback")
    seconds, attempt = 0.0, 0
    while result.injected < count:
        folder = root / f"signal_{attempt}"
        folder.mkdir()
        sent = generator.choice([signal.SIGINT, signal.SIGTERM])
        command = Command(folder, [])
        code = command.end(sent, generator.uniform(0, seconds) if attempt else 600.0)
        attempt += 1
        if code == 0:  # the run had already ended
            seconds = time.monotonic() - command.begin
            continue
        text = command.output.read_text()
        line = "Interrupted." if sent == signal.SIGINT else "Terminated."
        result.injected += 1
        ended_well = code == 128 + sent and text.count(line) == 1 and "Traceback" not in text
        result.survived += ended_well
        if not ended_well:
            print(f"exit code {code} after {line}\n{text}", file=sys.stderr)
    return result


def full_disks(count: int, root: Path, generator: random.Random) -> Count:
    result = Count("no more than n bytes per file can be written", "exit code 1, one line, no broken checkpoint")
    for number in range(count):
        folder = root / f"full_{number}"
        folder.mkdir()
        limit = generator.randrange(1_000, 80_000)
        command = Command(folder, [], lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))  # noqa: B023
        code = command.wait()
        text = command.output.read_text()
        lines = [line for line in text.splitlines() if line.startswith("error: ")]
        result.injected += 1
        result.survived += code == 1 and len(lines) == 1 and last_of(folder) is None and "Traceback" not in text
    return result


def damaged_files(count: int, good: Path, generator: random.Random) -> list[Count]:
    content = good.read_bytes()
    expected = _flat(torch.load(good, weights_only=True))
    path = good.with_name("damaged.ckpt")

    def flip() -> bytes:
        flipped = bytearray(content)
        bit = generator.randrange(8 * len(flipped))
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)

    def truncate() -> bytes:
        return content[: generator.randrange(len(content))]

    def clear() -> bytes:
        begin = generator.randrange(len(content))
        return content[:begin] + bytes(min(4096, len(content) - begin)) + content[begin + 4096 :]

    means = "refused in one line, or what was loaded was the same, bit for bit"
    results = []
    for fault, damage, times in (
        ("one flipped bit in a checkpoint", flip, count),
        ("a truncated checkpoint", truncate, count // 4),
        ("4 KiB of a checkpoint are zero", clear, count // 4),
    ):
        result = Count(fault, means)
        refused = 0
        for _ in range(times):
            path.write_bytes(damage())
            result.injected += 1
            try:
                result.survived += _flat(read_checkpoint(path, resume=True)) == expected
            except MisconfigurationError as error:
                refused += 1
                result.survived += "\n" not in str(error)
        result.survived_means = f"{refused} refused in one line, {times - refused} loaded the same bits"
        results.append(result)
    path.unlink()
    return results


def _flat(value: object) -> object:
    if isinstance(value, dict):
        return [(str(name), _flat(item)) for name, item in value.items()]
    if isinstance(value, list | tuple):
        return [_flat(item) for item in value]
    return (str(value.dtype), tuple(value.shape), value.numpy().tobytes()) if torch.is_tensor(value) else repr(value)


def run_all() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--signals", type=int, default=20)
    parser.add_argument("--disks", type=int, default=5)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    torch.set_num_threads(1)
    begin = time.monotonic()
    print("| fault | injected | survived | lost | survived means |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "good").mkdir()
        assert Command(root / "good", []).wait() == 0, (root / "good" / "output.txt").read_text()
        good = last_of(root / "good")
        assert good is not None
        good.previous_checkpoint.unlink()  # otherwise, every refusal would read it too
        for count in damaged_files(options.files, good.checkpoint, generator):
            print(count.row(), flush=True)
        for inject, times in ((kills, options.kills), (signals, options.signals), (full_disks, options.disks)):
            print(inject(times, root, generator).row(), flush=True)
    print(f"\n{date.today()}, {platform.machine()}, {os.cpu_count()} cores, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    run_all()
