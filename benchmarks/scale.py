"""Measure what grows with a federation: the server's share of a round, memory, and the cost of many clients.

    python benchmarks/scale.py [share] [memory] [registered] [cohort] [--rounds 5]

share        CPU time that the server takes per round of FedNNNN's CNN, as a share of the round: local training, server
             and the evaluation of 10,000 images
memory       peak memory of a process with 10 and with 100 clients per round of ResNet-18, for streaming aggregators;
             SCAFFOLD also remembers a vector per client, in a folder or in memory
registered   CPU time until the first round and per round, with 1,000 and with 100,000 clients, 10 of them per round
cohort       one vectorised round with 1,000 clients of an MLP

Times are CPU times of the process, because other processes on the machine affect them less than wall-clock times.
Memory and registered clients are measured in a fresh process each.
"""

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator

import torch
from pytorch_lightning import Callback, LightningDataModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.aggregation import FedAdp, FedAvg, FedNNNN, FedNS, Scaffold
from fl_lightning.callbacks import AngleDiagnostics, FederatedServer, NormDiagnostics
from fl_lightning.core.memory import reuse_freed_memory
from fl_lightning.data import IID, RandomClients
from fl_lightning.models import Classifier, FullyConnected, MnistCNN, TorchvisionNet

AGGREGATORS = {
    "FedAvg": FedAvg,
    "FedNNNN": lambda: FedNNNN(beta=0.7, gamma=0.8),
    "FedAdp": FedAdp,
    "FedNS": FedNS,
    "Scaffold": Scaffold,
}
#: the largest share of a round that the server may take, see issue 11
LIMITS = {"FedNNNN": 0.02, "FedAdp": 0.05, "FedNS": 0.05}


class Images(LightningDataModule):
    """Random images.

    Args:
        samples: the number of images.
        shape: the shape of one image.
        batch_size: size of the clients' batches.
        evaluated: the number of images for validation; by default there is none.
    """

    def __init__(self, samples: int, shape: tuple[int, ...], batch_size: int, evaluated: int = 0) -> None:
        super().__init__()
        self.train, self.test = (
            TensorDataset(torch.randn(count, *shape), torch.arange(count) % 10) for count in (samples, evaluated)
        )
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader | list:
        return DataLoader(self.test, batch_size=512) if len(self.test) else []


class EvaluationClock(Callback):
    """Measures the CPU time of every validation."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_validation_start(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        self.begin = time.process_time()

    def on_validation_end(self, trainer: Trainer, pl_module: FederatedModule) -> None:
        self.times.append(time.process_time() - self.begin)


class Clock:
    """Adds up the CPU time of rounds, and separately the CPU time of local training in them."""

    def __init__(self, module: FederatedModule, local_training: LocalTraining) -> None:
        self.begin = time.process_time()
        self.start: float | None = None  # until the first round
        self.rounds: list[float] = []
        self.training: list[float] = []
        run_round, train_cohort = module.training_step, local_training.train_cohort

        def timed_round(*arguments) -> None:
            begin = time.process_time()
            self.start = self.start or begin - self.begin
            self.training.append(0.0)
            run_round(*arguments)
            self.rounds.append(time.process_time() - begin)

        def timed_cohort(*arguments) -> Iterator:
            updates = train_cohort(*arguments)
            while True:
                begin = time.process_time()
                update = next(updates, None)
                self.training[-1] += time.process_time() - begin
                if update is None:
                    return
                yield update

        module.training_step = timed_round  # type: ignore[method-assign]
        local_training.train_cohort = timed_cohort  # type: ignore[method-assign]


def run(
    aggregator: str, module, source, clients: int, count: int, rounds: int, callbacks=(), folder=None, **client
) -> Clock:
    """Train a federation and return its clock. ``folder`` is where the server keeps what it remembers about clients."""
    seed_everything(0, verbose=False)
    federated, local_training = FederatedModule(module), LocalTraining(**client)
    clock = Clock(federated, local_training)
    trainer = Trainer(
        max_epochs=rounds,
        callbacks=[
            FederatedServer(AGGREGATORS[aggregator](), client=local_training, client_folder=folder),
            *callbacks,
        ],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(federated, FederatedDataModule(source, IID(clients), RandomClients(count=count)))
    return clock


def share(rounds: int) -> None:
    reuse_freed_memory()  # as fl-lightning fit does
    for diagnostics in (False, True):
        for aggregator, limit in LIMITS.items():
            callbacks = [NormDiagnostics(), AngleDiagnostics()] if diagnostics else []
            source, evaluation = Images(6000, (1, 28, 28), 50, evaluated=10_000), EvaluationClock()
            clock = run(aggregator, Classifier(MnistCNN()), source, 10, 10, rounds + 1, [*callbacks, evaluation])
            server = [whole - training for whole, training in zip(clock.rounds, clock.training, strict=True)][1:]
            training = statistics.median(clock.training[1:])
            part, evaluated = statistics.median(server), statistics.median(evaluation.times[-rounds:])
            print(
                f"{aggregator:8} {'with diagnostics' if diagnostics else 'alone':16} server {1e3 * part:6.1f} ms, local"
                f" training {1e3 * training:7.1f} ms, evaluation {1e3 * evaluated:6.1f} ms:"
                f" {part / (part + training + evaluated):.2%} of a round (limit {limit:.0%})"
            )


def memory(rounds: int) -> None:
    for aggregator, in_folder in (("FedAvg", False), ("FedNNNN", False), ("Scaffold", True), ("Scaffold", False)):
        peaks = [in_new_process(f"memory_of('{aggregator}', {count}, {in_folder})") for count in (10, 100)]
        print(
            f"{aggregator + (' with client_folder' if in_folder else ''):27} 10 clients {peaks[0]:6.0f} MB, 100 clients"
            f" {peaks[1]:6.0f} MB: {peaks[1] / peaks[0]:.3f}"
        )


def memory_of(aggregator: str, count: int, in_folder: bool) -> float:
    source = Images(200, (3, 32, 32), 2)
    module = Classifier(TorchvisionNet("resnet18", num_classes=10))
    with tempfile.TemporaryDirectory() as folder:
        run(aggregator, module, source, 100, count, 2, folder=folder if in_folder else None)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def registered(rounds: int) -> None:
    for aggregator in ("FedNNNN", "FedAdp", "Scaffold"):
        few, many = (in_new_process(f"cost_of('{aggregator}', {clients}, {rounds})") for clients in (1_000, 100_000))
        for name in few:
            print(
                f"{aggregator:8} {name:20} 1,000 clients {1e3 * few[name]:7.1f} ms, 100,000 clients"
                f" {1e3 * many[name]:7.1f} ms: {many[name] / few[name]:.2f}"
            )


def cost_of(aggregator: str, clients: int, rounds: int) -> dict[str, float]:
    source = Images(200_000, (16,), 50)
    module = Classifier(FullyConnected(16, (20,)))
    clock = run(aggregator, module, source, clients, 10, rounds + 1, batch_size=2, limit_train_batches=1)
    assert clock.start is not None
    return {"until the first round": clock.start, "per round": statistics.median(clock.rounds[1:])}


def cohort(rounds: int) -> None:
    source = Images(10_000, (1, 28, 28), 5)
    clock = run("FedNNNN", Classifier(FullyConnected()), source, 1000, 1000, 2, execution="vectorized")
    print(f"1,000 clients x 10 images in one vectorised round: {clock.rounds[1]:.2f} s")


def in_new_process(call: str):
    program = f"import json, scale; scale.be_quiet(); print(json.dumps(scale.{call}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=__file__.rpartition("/")[0], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def be_quiet() -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")


def main() -> None:
    measurements = {measurement.__name__: measurement for measurement in (memory, registered, cohort, share)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="*", default=list(measurements), help="measurements to take; by default all")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, after one to warm up")
    arguments = parser.parse_args()
    be_quiet()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in arguments.which:
        print(f"\n{name}")
        measurements[name](arguments.rounds)


if __name__ == "__main__":
    main()
