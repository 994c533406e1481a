"""What the tests run with ``lightning``. It is imported first, as a user's script would."""

import lightning as L  # noqa: N812

# isort: split
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger

from fl_lightning import FederatedDataModule, FederatedModule, FederatedServer, LocalTraining
from fl_lightning.aggregation import FedNNNN, FedProx, Scaffold
from fl_lightning.callbacks import (
    AngleDiagnostics,
    ClientEvaluation,
    CosineAnnealing,
    Ditto,
    DivergenceDiagnostics,
    NormDiagnostics,
    Participation,
)
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ClassesPerClient, RandomClients
from tests.other_lightning.toys import Blobs, Net

torch.set_num_threads(1)


def federate(server: FederatedServer, rounds: int, ckpt_path: Path | None = None, **flags: Any) -> L.Trainer:
    """Run a federation of five clients, three per round, and return its Trainer."""
    L.seed_everything(3, verbose=False)
    trainer = L.Trainer(
        max_epochs=rounds,
        accelerator="cpu",
        callbacks=[server, *flags.pop("callbacks", [])],
        **{"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "devices": 1, **flags},
    )
    data = FederatedDataModule(Blobs(), ClassesPerClient(num_clients=5, classes=2), RandomClients(count=3))
    trainer.fit(FederatedModule(Net()), data, ckpt_path=ckpt_path)
    return trainer


def fit_with_all_diagnostics() -> set[str]:
    """Run FedNNNN with every diagnostic, and return the columns of its log."""
    diagnostics = [NormDiagnostics(), AngleDiagnostics(), DivergenceDiagnostics(), Participation(), ClientEvaluation()]
    federate(FederatedServer(FedNNNN(beta=0.7, gamma=0.8)), 2, callbacks=diagnostics, logger=CSVLogger(".", "logs"))
    return set(Path("logs/version_0/metrics.csv").read_text().splitlines()[0].split(","))


def resumed_equals_undisturbed() -> bool:
    """Stop SCAFFOLD with client callbacks after a round, resume it, and compare it with an undisturbed run."""

    def run(rounds: int, ckpt_path: Path | None = None) -> L.Trainer:
        callbacks = [CosineAnnealing(horizon="round"), Ditto(lam=0.1)]
        server = FederatedServer(Scaffold(), client=LocalTraining(callbacks=callbacks))
        return federate(server, rounds, ckpt_path, enable_checkpointing=False)

    run(1).save_checkpoint("begun.ckpt")
    resumed, whole = _state(run(3, Path("begun.ckpt"))), _state(run(3))
    return all(torch.equal(resumed[name], whole[name]) for name in whole)


def difference_between_one_and_two_processes() -> float:
    """Run FedProx on one process and on two; return the largest difference of their models."""
    one, two = (
        _state(federate(FederatedServer(FedProx(mu=0.1)), 2, enable_checkpointing=False, **flags))
        for flags in ({}, {"strategy": "ddp_fork", "devices": 2})
    )
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def command(*arguments: str) -> int:
    """Run ``fl-lightning`` and return its exit code."""
    from fl_lightning.cli.main import main

    sys.argv = ["fl-lightning", *arguments]
    try:
        main()
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def package() -> str:
    from fl_lightning._lightning.package import PACKAGE

    return PACKAGE


def train(import_other_copy: bool) -> None:
    """Run two rounds, with the other copy imported or not. Its import redirects Lightning's messages."""
    if import_other_copy:
        import pytorch_lightning  # noqa: F401
    federate(FederatedServer(), 2, enable_checkpointing=False)


def mixtures() -> dict[str, str]:
    """Return the errors about each object of the other copy."""
    import pytorch_lightning as pl

    class OtherNet(pl.LightningModule):
        pass

    class OtherData(pl.LightningDataModule):
        pass

    class OtherCallback(pl.Callback):
        pass

    return {
        "module": _error(lambda: FederatedModule(OtherNet())),
        "data module": _error(lambda: FederatedDataModule(OtherData(), ClassesPerClient(5, 2))),
        "client callback": _error(lambda: LocalTraining(callbacks=[OtherCallback()])),
        "callback": _error(lambda: federate(FederatedServer(), 1, callbacks=[OtherCallback()])),
        "logger": _error(lambda: federate(FederatedServer(), 1, logger=pl.loggers.CSVLogger("."))),
    }


def _state(trainer: L.Trainer) -> dict[str, torch.Tensor]:
    return dict(trainer.lightning_module.state_dict())


def _error(action: Callable[[], object]) -> str:
    try:
        action()
    except MisconfigurationError as error:
        return str(error)
    return "no error"


def modules_of_names() -> dict[str, str]:
    """Return the module of every class and function that this package imports from Lightning."""
    from fl_lightning._lightning import cli_names, names

    found = {name: getattr(source, name) for source in (names, cli_names) for name in source.__all__}
    return {name: getattr(item, "__module__", "") for name, item in found.items()}


def imported_copies() -> list[str]:
    return [name for name in ("lightning.pytorch", "pytorch_lightning", "lightning_fabric") if name in sys.modules]


def loggers_of_messages() -> list[str]:
    """Return the logger that Lightning's messages go to, before and after the other copy is imported."""
    from lightning_utilities.core import rank_zero

    before = rank_zero.log.name
    import pytorch_lightning  # noqa: F401

    return [before, rank_zero.log.name]
