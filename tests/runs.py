"""Runs the command line in separate processes, and reads the files that a run leaves."""

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from torch import Tensor

REPOSITORY = Path(__file__).parent.parent

CONFIG = {
    "seed_everything": 3,
    "model": {
        "class_path": "tests.toys.Net",
        "init_args": {"batch_norm": True, "dropout": 0.2, "momentum": 0.9},
    },
    "data": {
        "source": {"class_path": "tests.toys.Blobs", "init_args": {"batch_size": 8}},
        "partition": {"class_path": "ClassesPerClient", "init_args": {"num_clients": 10, "classes": 2}},
        "selection": {"class_path": "RandomClients", "init_args": {"count": 5}},
    },
    "client": {"epochs": 2},
    "trainer": {"max_epochs": 10, "accelerator": "cpu", "devices": 1, "enable_progress_bar": False},
}


def write_config(path: Path, **changes) -> Path:
    """Write CONFIG with some sections updated: ``trainer={"max_epochs": 3}`` changes one key of that section."""
    config = {
        section: dict(CONFIG.get(section, {})) if isinstance(CONFIG.get(section, {}), dict) else CONFIG[section]
        for section in {*CONFIG, *changes}
    }
    for section, values in changes.items():
        if isinstance(values, dict):
            config[section].update(values)
        else:
            config[section] = values
    path.write_text(yaml.safe_dump(config))
    return path


@dataclass
class Finished:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def fl_lightning(*arguments: object, folder: Path = REPOSITORY, timeout: int = 240) -> Finished:
    """Run the command in a forked process, because a new one would take 8 seconds to import Lightning."""
    from fl_lightning.cli.commands import COMMANDS, STANDALONE_COMMANDS
    from tests.cli.mutations.running import fill_parser

    if arguments[0] in COMMANDS.keys() - STANDALONE_COMMANDS.keys():
        fill_parser(str(arguments[0]))
    with tempfile.TemporaryDirectory() as temporary:
        files = [Path(temporary, name) for name in ("stdout", "stderr")]
        process = multiprocessing.get_context("fork").Process(
            target=_command, args=(files, folder, list(map(str, arguments)))
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise TimeoutError(f"fl-lightning {' '.join(map(str, arguments))} took more than {timeout} s")
        assert process.exitcode is not None
        return Finished(process.exitcode, *(file.read_text() for file in files))


def _command(files: list[Path], folder: Path, arguments: list[str]) -> None:
    atexit._clear()  # what the tests have registered would remove their own temporary folders
    from fl_lightning.cli import dispatch, main

    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1) for number in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    for name in [name for name in os.environ if name.startswith("PL_")]:
        del os.environ[name]
    os.chdir(folder)
    sys.argv = ["fl-lightning", *arguments]
    dispatch.reuse_freed_memory = lambda: True  # which costs memory and saves time
    main.main()


def succeeded(process: Finished) -> str:
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process.stdout


def weights(run: Path) -> "dict[str, Tensor]":
    import torch

    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(run), size_guidance={SCALARS: 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
