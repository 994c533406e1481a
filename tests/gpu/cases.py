"""The runs that are repeated on the emulated GPU, and how a run is compared with the same run on the CPU."""

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import TensorDataset

import fl_lightning
from fl_lightning import ClientUpdate
from fl_lightning.callbacks import (
    AngleDiagnostics,
    ClientCallback,
    ClientEvaluation,
    DivergenceDiagnostics,
    GlobalTrainingLoss,
    LastRound,
    NormDiagnostics,
    Participation,
    RoundCallback,
)
from fl_lightning.core.errors import RoundFailedError
from fl_lightning.data import AllClients, ClassesPerClient, RandomClients
from fl_lightning.data.sources.images import ImageSource
from tests.gpu.emulator import EmulatedGPU
from tests.gpu.record import Event, Frame
from tests.gpu.runtime import runtime_calls, set_free_memory
from tests.runs import REPOSITORY
from tests.test_every_algorithm import ALGORITHMS, PARTS, fitting_model, run
from tests.toys import Net, blobs

Case = dict[str, Any]
_CODE = (str(Path(fl_lightning.__file__).parent), str(REPOSITORY / "fl_lightning"), str(REPOSITORY / "callbacks"))


class Pictures(ImageSource):
    """Random images of 2 x 3 pixels, which the model of ``test_every_algorithm`` takes."""

    channel_mean = (0.4,)
    channel_std = (0.3,)

    def read(self) -> tuple[TensorDataset, TensorDataset]:
        inputs, labels = blobs().tensors
        images = inputs.sub(inputs.min()).mul(20).to(torch.uint8).view(-1, 1, 2, 3)
        return TensorDataset(images, labels), TensorDataset(images, labels)


class Devices(RoundCallback):
    """Collects the devices that updates and aggregates are on."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def on_client_end(self, trainer: Any, pl_module: Any, round: Any, update: Any, weight: float) -> None:
        self.found |= {str(value.device) for value in update.state.values()}

    def on_round_end(self, trainer: Any, pl_module: Any, round: Any, aggregate: Any) -> None:
        self.found |= {str(value.device) for value in [*aggregate.state.values(), *aggregate.served_state.values()]}


def dropout_net() -> LightningModule:
    """Return a network that draws random numbers and logs in every step."""
    torch.manual_seed(0)
    return Net(batch_norm=True, dropout=0.2, momentum=0.9)


def diagnostics() -> list[Any]:
    """Return one diagnostic of every kind."""
    return [NormDiagnostics(), AngleDiagnostics(), DivergenceDiagnostics(), Participation(), ClientEvaluation()]


class SendNaN(ClientCallback):
    """Lets client 1 send NaN in the second round."""

    def on_upload(self, update: ClientUpdate) -> None:
        if (self.round.number, self.client) == (1, 1):
            update.state = {**update.state, "head.bias": update.state["head.bias"] * torch.nan}


AT_ONCE = {"execution": "vectorized"}
#: the settings of each run as functions, because callbacks hold state and every run needs its own
CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(dict, algorithm=name) for name in ALGORITHMS},
    **{f"FedAvg, {name}": partial(dict, algorithm="FedAvg", **PARTS[name]) for name in PARTS},
    # Without recordings: torch runs make_fx below other modes, so it would record the emulation's own operations. Then
    # ClientStep goes on without. A recording makes the host wait once, when it is compared with the step.
    **{f"{name}, all clients at once": partial(dict, algorithm=name, client=AT_ONCE) for name in ALGORITHMS},
    "diagnostics": lambda: {"algorithm": "FedAvg", "server_callbacks": diagnostics()},
    "diagnostics of FedDNA": lambda: {"algorithm": "FedDNA", "server_callbacks": diagnostics()},
    "diagnostics of FedBN": lambda: {"algorithm": "FedBN", "server_callbacks": diagnostics()},
    "norms, angles and divergences": lambda: {
        "algorithm": "FedAvg",
        "server_callbacks": [NormDiagnostics(), AngleDiagnostics(), DivergenceDiagnostics()],
    },
    "quantiles of angles": lambda: {"algorithm": "FedAdp", "server_callbacks": [AngleDiagnostics(max_curves=0)]},
    "evaluation on own samples": lambda: {
        "algorithm": "FedAvg",
        "server_callbacks": [ClientEvaluation(samples="own")],
    },
    "evaluation of the training loss": lambda: {
        "algorithm": "FedAvg",
        "server_callbacks": [GlobalTrainingLoss()],
    },
    "pictures": lambda: {"algorithm": "FedAvg", "source": Pictures(batch_size=8)},
    "augmented pictures": lambda: {"algorithm": "FedAvg", "source": Pictures(batch_size=8, augment=True)},
    "FedAvg, a module that logs": lambda: {"algorithm": "FedAvg", "module": dropout_net()},
    "Scaffold, a client is dropped": lambda: {
        "algorithm": "Scaffold",
        "callbacks": [SendNaN()],
        "client": {"on_error": "drop"},
    },
    "Scaffold in a folder": lambda: {"algorithm": "Scaffold", "folder": "clients"},
    "FedBN in a folder": lambda: {"algorithm": "FedBN", "folder": "clients"},
    "FedMA in a folder": lambda: {"algorithm": "FedMA", "folder": "clients"},
}


def phase(frames: list[Frame]) -> str:
    """Return ``step``, ``client``, ``round``, ``validation``, ``checkpoint`` or ``setup``, from the stack."""
    calls = [(path.rpartition("/")[2], function) for path, function, _ in frames]
    if ("server.py", "run_round") in calls:
        calls = calls[: calls.index(("server.py", "run_round"))]
        functions = {function for _, function in calls}
        if ("training.py", "train_cohort") in calls:
            return "step" if ("training_epoch_loop.py", "advance") in calls else "client"
        per_client = {"on_client_end", "receive", "add", "put", "__call__"}
        return "client" if functions & per_client else "round"
    functions = {function for _, function in calls}
    if "save_checkpoint" in functions:
        return "checkpoint"
    if any(file == "evaluation_loop.py" for file, _ in calls):
        return "validation"
    return "round" if ("fit_loop.py", "advance") in calls else "setup"


def emulated(nccl: bool = False) -> EmulatedGPU:
    """Return an emulated GPU that records which line of this project makes the host wait."""
    return EmulatedGPU(_CODE, phase, nccl)


def fit(case: Case, accelerator: str, root: Path, **options: Any) -> tuple[dict[str, Tensor], Trainer]:
    """Run a case and return the served state and the Trainer."""
    seed_everything(3, verbose=False)
    settings: Case = {"partition": ClassesPerClient(4, 2), "devices": 1, "num_sanity_val_steps": 0, **case, **options}
    settings.setdefault("module", fitting_model(settings["algorithm"]))
    if "folder" in settings:
        settings["folder"] = str(root / settings["folder"])
    settings.setdefault("logger", CSVLogger(root, "log"))
    return run(accelerator=accelerator, default_root_dir=root, **settings)


def on_cpu(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a state on the CPU."""
    return {name: value.cpu().clone() for name, value in state.items()}


def numbers(trainer: Trainer) -> dict[str, float]:
    """Return the metrics that callbacks can monitor."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


def differences(expected: dict[str, Tensor], state: dict[str, Tensor]) -> list[str]:
    """Return the entries that are not the same bit for bit."""
    return [name for name in expected | state if not torch.equal(expected[name], state[name])]


def different_numbers(expected: dict[str, float], found: dict[str, float]) -> list[str]:
    """Return the metrics that are not the same, or that only one of the runs has."""
    return [name for name in expected | found if repr(expected.get(name)) != repr(found.get(name))]


def distant_numbers(expected: dict[str, float], found: dict[str, float]) -> list[str]:
    """Return the metrics that differ by more than rounding: devices that share a validation sum in another order."""
    names = different_numbers(expected, found)
    near = [
        name for name in names if math.isclose(expected.get(name, math.nan), found.get(name, math.nan), rel_tol=1e-6)
    ]
    return [name for name in names if name not in near]


def per_phase(waits: Counter[Event]) -> dict[str, int]:
    """Return how often the host waited, by phase."""
    total: Counter[str] = Counter()
    for event, times in waits.items():
        total[event.phase] += times
    return dict(total)


def compare(name: str) -> dict[str, Any]:
    """Run a case on the CPU and on the emulated GPU, and return how the runs differ."""
    expected, cpu_trainer = fit(CASES[name](), "cpu", Path(tempfile.mkdtemp()))
    launches = runtime_calls()["kernel launches"]
    with emulated() as gpu:
        case = CASES[name]()
        case["server_callbacks"] = [*case.get("server_callbacks", []), devices := Devices()]
        state, trainer = fit(case, "gpu", Path(tempfile.mkdtemp()))
        state, found = on_cpu(state), numbers(trainer)
    return {
        "weights": differences(expected, state),
        "metrics": different_numbers(numbers(cpu_trainer), found),
        "devices": sorted(devices.found),
        "launches": runtime_calls()["kernel launches"] - launches,
        "waits": per_phase(gpu.record.waits),
        "events": [(times, *event) for event, times in sorted(gpu.record.waits.items())],
    }


def measure(name: str, clients: int, epochs: int) -> dict[str, Any]:
    """Run two rounds of a case on the emulated GPU and return how often the host waited, by phase, and where."""
    with emulated() as gpu:
        fit(
            CASES[name](),
            "gpu",
            Path(tempfile.mkdtemp()),
            partition=ClassesPerClient(clients, 2),
            selection=AllClients(),
            epochs=epochs,
        )
    return {
        "waits": per_phase(gpu.record.waits),
        "events": [(times, *event) for event, times in sorted(gpu.record.waits.items())],
    }


def failure(name: str) -> dict[str, Any]:
    """Let a client of a case stop the run on the emulated GPU, and return the message and how often the host waited."""
    with emulated() as gpu, pytest.raises(RoundFailedError) as error:
        fit(CASES[name](), "gpu", Path(tempfile.mkdtemp()), client={"on_error": "raise"})
    return {"message": str(error.value), "waits": per_phase(gpu.record.waits)}


def budget(name: str) -> dict[str, Any]:
    """Measure a small run, and one with more clients and more steps per client."""
    return {"small": measure(name, clients=2, epochs=1), "large": measure(name, clients=4, epochs=2)}


def full_device(name: str) -> dict[str, Any]:
    """Compare a case on a device whose memory is taken, so that data and memories stay on the host."""
    set_free_memory(0)
    return compare(name)


def resume(name: str) -> dict[str, Any]:
    """Stop a run on the emulated GPU after two rounds, and continue it there and on the CPU.

    Both must end like a run on the CPU that was never stopped.
    """

    def options(rounds: int, **more: Any) -> dict[str, Any]:
        selection = RandomClients(count=3)
        return {"selection": selection, "enable_checkpointing": True, "rounds": rounds, **more}

    def case() -> Case:
        settings = CASES[name]()
        return {**settings, "server_callbacks": [*settings.get("server_callbacks", []), LastRound()]}

    whole, whole_trainer = fit(case(), "cpu", Path(tempfile.mkdtemp()), **options(4))
    checkpoint = "log/version_0/checkpoints/last.ckpt"
    begun = Path(tempfile.mkdtemp())
    with emulated():
        fit(case(), "gpu", begun, **options(2))
        copied = Path(shutil.copytree(begun, Path(tempfile.mkdtemp(), "copy")))
        state, trainer = fit(case(), "gpu", begun, **options(4, ckpt_path=begun / checkpoint))
        on_gpu, metrics_on_gpu = on_cpu(state), numbers(trainer)
    state, trainer = fit(case(), "cpu", copied, **options(4, ckpt_path=copied / checkpoint))
    expected = numbers(whole_trainer)
    return {
        "gpu": [*differences(whole, on_gpu), *different_numbers(expected, metrics_on_gpu)],
        "cpu": [*differences(whole, state), *different_numbers(expected, numbers(trainer))],
    }


def train_rank(name: str) -> dict[str, Any]:
    """Run a case as one of two ranks, each with its own emulated GPU, and return how it ends.

    Collectives run over gloo, but accept only what NCCL accepts.
    """
    with emulated(nccl=True) as gpu:
        case = CASES[name]()
        case["server_callbacks"] = [*case.get("server_callbacks", []), devices := Devices()]
        strategy = DDPStrategy(process_group_backend="gloo")
        state, trainer = fit(case, "gpu", Path(tempfile.mkdtemp()), strategy=strategy, devices=2)
        state, found = on_cpu(state), numbers(trainer)
    copies: Counter[str] = Counter()
    for event, size in gpu.record.copies.items():
        if event.kind.startswith("c10d"):
            copies[f"{event.phase}: {event.where}"] += size
    return {"state": state, "metrics": found, "devices": sorted(devices.found), "copies": dict(copies)}
