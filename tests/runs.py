"""Runs of the command line in processes of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

REPOSITORY = Path(__file__).parent.parent

CONFIG = {
    "seed_everything": 3,
    "model": {
        "class_path": "tests.toys.Net",
        "init_args": {"batch_norm": True, "dropout": 0.2, "momentum": 0.9},
    },
    "data": {
        "source": {"class_path": "tests.toys.Blobs"},
        "partition": {"class_path": "ClassesPerClient", "init_args": {"num_clients": 10, "classes": 2}},
        "selection": {"class_path": "RandomClients", "init_args": {"count": 5}},
    },
    "client": {"epochs": 2},
    "trainer": {"max_epochs": 20, "accelerator": "cpu", "devices": 1, "enable_progress_bar": False},
}


def write_config(path: Path, **changes) -> Path:
    """CONFIG with whole sections changed: ``trainer={"max_epochs": 3}`` changes one key of that section."""
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


def fl_lightning(*arguments: object, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PL_")}
    return subprocess.run(
        [sys.executable, "-m", "fl_lightning.cli.main", *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=timeout,
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def succeeded(process: subprocess.CompletedProcess[str]) -> str:
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process.stdout


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run), size_guidance={SCALARS: 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
