"""Measure what the diagnostics cost: rounds with and without them, interleaved in one run.

    python benchmarks/diagnostics.py [--repeats 10] [--epochs 1]

10 clients train FedNNNN's CNN on 600 MNIST-sized images each, in batches of 50. Every other round runs without the
callbacks. On a busy machine the ratio of the two is noisy, and the time spent in the callbacks is the better number.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings

import torch
from overhead import BATCH, CLIENTS, SAMPLES, client_data
from pytorch_lightning import Trainer, seed_everything
from pytorch_lightning.loggers import TensorBoardLogger

from fl_lightning import FederatedDataModule, FederatedModule, LocalTraining
from fl_lightning.callbacks import AngleDiagnostics, DivergenceDiagnostics, FederatedServer, NormDiagnostics
from fl_lightning.models import Classifier, MnistCNN

DIAGNOSTICS = (NormDiagnostics, AngleDiagnostics, DivergenceDiagnostics)
HOOKS = ("on_round_start", "on_client_end", "on_round_end")


class Clock:
    """Switches the callbacks on in every other round and adds up the time spent in them."""

    def __init__(self, module: FederatedModule, callbacks: list) -> None:
        self.rounds: dict[bool, list[float]] = {True: [], False: []}
        self.within = dict.fromkeys((type(callback).__name__ for callback in callbacks), 0.0)
        self.on = True
        for callback in callbacks:
            for hook in HOOKS:
                setattr(callback, hook, self._timed(type(callback).__name__, getattr(callback, hook)))
        step = module.training_step

        def training_step(clients: list[int], batch_idx: int) -> None:
            self.on = module.current_epoch % 2 == 0
            begin = time.perf_counter()
            step(clients, batch_idx)
            self.rounds[self.on].append(time.perf_counter() - begin)
            if module.current_epoch < 2:  # the first two rounds are a warm-up
                self.within = dict.fromkeys(self.within, 0.0)

        module.training_step = training_step  # type: ignore[method-assign]

    def _timed(self, name: str, hook):
        def timed(*arguments) -> None:
            if self.on:
                begin = time.perf_counter()
                hook(*arguments)
                self.within[name] += time.perf_counter() - begin

        return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="timed rounds of each kind")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    arguments = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    seed_everything(0, verbose=False)

    module = FederatedModule(Classifier(MnistCNN()))
    callbacks = [diagnostics() for diagnostics in DIAGNOSTICS]
    clock = Clock(module, callbacks)
    server = FederatedServer(client=LocalTraining(epochs=arguments.epochs, batch_size=BATCH))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_epochs=2 * (arguments.repeats + 1),
            callbacks=[server, *callbacks],
            logger=TensorBoardLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        trainer.fit(module, FederatedDataModule(client_data()))
    on, off = clock.rounds[True][1:], clock.rounds[False][1:]
    ratio = statistics.median(a / b for a, b in zip(on, off, strict=True))
    print(f"{CLIENTS} clients x {SAMPLES} images, E={arguments.epochs}; {torch.get_num_threads()} threads")
    print(f"per round: {statistics.median(off):.2f} s off, {statistics.median(on):.2f} s on, ratio {ratio:.3f}")
    clock.within["all of them"] = sum(clock.within.values())
    for name, seconds in clock.within.items():
        print(f"in {name:22} {1e3 * seconds / len(on):6.1f} ms per round, {seconds / sum(on):.2%}")


if __name__ == "__main__":
    main()
