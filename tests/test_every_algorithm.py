"""Tests that every algorithm must pass: it works with every other part, on two processes and after a kill."""

import multiprocessing
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.aggregation import (
    Aggregator,
    CoordinateMedian,
    FedAdp,
    FedAvg,
    FedAvgLastFC,
    FedBN,
    FedDNA,
    FedDyn,
    FedMA,
    FedNNNN,
    FedNova,
    FedNS,
    FedProx,
    GeometricMedian,
    Krum,
    Momentum,
    MultiKrum,
    NormClipping,
    NormNorm,
    Scaffold,
    TrimmedMean,
)
from fl_lightning.callbacks import CosineAnnealing, Ditto, FederatedServer, LastRound, LearningRateDecay, ProximalTerm
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, AllClients, ClassesPerClient, RandomClients, SequentialClients
from fl_lightning.transforms import QSGD, BernoulliMask, TopK
from tests.kill import Kill
from tests.toys import Blobs, federate, identical, random_state, random_updates


class Images(LightningModule):
    """A convolution, optional normalisation and linear layers, on the six features as a 2 x 3 image."""

    def __init__(self, norm: bool = True, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.conv = nn.Conv2d(1, 4, 2)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.hidden = nn.Linear(8, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, inputs):
        maps = functional.relu(self.norm(self.conv(inputs.view(-1, 1, 2, 3))))
        return self.head(functional.relu(self.hidden(maps.flatten(1))))

    def training_step(self, batch, batch_idx):
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return self.optimizer(self.parameters(), lr=0.05)


ALGORITHMS = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(mu=0.1),
    "FedNNNN": lambda: FedNNNN(beta=0.7, gamma=0.8),
    "FedNNNN by layer": lambda: FedNNNN(beta=0.7, gamma=0.8, granularity="layer"),
    "NormNorm": lambda: NormNorm(beta=1.0),
    "Momentum": lambda: Momentum(gamma=0.8),
    "FedAdp": FedAdp,
    "FedNS": FedNS,
    "FedAvgLastFC": FedAvgLastFC,
    "FedDNA": lambda: FedDNA(steps=5),
    "Scaffold": Scaffold,
    "FedBN": FedBN,
    "FedMA": FedMA,
    "FedMA in one shot": lambda: FedMA(one_shot=True),
    "FedMA with BatchNorm": FedMA,
    "FedDyn": lambda: FedDyn(alpha=0.1),
    "FedNova": FedNova,
    "CoordinateMedian": CoordinateMedian,
    "TrimmedMean": TrimmedMean,
    "Krum": Krum,
    "MultiKrum": MultiKrum,
    "GeometricMedian": GeometricMedian,
    "NormClipping": lambda: NormClipping(max_norm=100.0),
    "Ditto": FedAvg,
}
PARTS = {
    "all clients": {"selection": AllClients()},
    "random clients": {"selection": RandomClients(count=3)},
    "one client per round": {"selection": RandomClients(count=1)},
    "sequential clients": {"selection": SequentialClients(count=4)},
    "iid": {"partition": IID(6, sizes="power_law")},
    "mask": {"transforms": [BernoulliMask(0.6)]},
    "top-k": {"transforms": [TopK(0.3)]},
    "quantised": {"transforms": [QSGD()]},
    "proximal term": {"callbacks": [ProximalTerm(0.1)]},
    "personal models": {"callbacks": [Ditto(lam=0.5)]},
    "cosine annealing": {"callbacks": [CosineAnnealing()]},
    "decay": {"callbacks": [LearningRateDecay(0.9)]},
    "uniform": {"weighting": "uniform"},
    "server Adam": {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.01)},
    "everything at once": {
        "selection": SequentialClients(count=4),
        "transforms": [BernoulliMask(0.6)],
        "callbacks": [ProximalTerm(0.1), CosineAnnealing()],
        "weighting": "uniform",
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.5),
    },
}
#: client callbacks of the algorithms that have no aggregator of their own
CLIENT_CALLBACKS = {"Ditto": [Ditto(lam=0.5)]}
#: algorithms that remember something about each client; the others never use the store
WITH_MEMORY = ("FedDNA", "Scaffold", "FedBN", "FedMA", "FedMA with BatchNorm", "FedDyn", "Ditto")
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
#: algorithms that send, reduce and remember what another one does; what starts processes or kills runs is slow for them
SIMILAR = ("FedProx", "FedNNNN", "NormNorm", "Momentum", "FedAvgLastFC", "FedMA in one shot", "CoordinateMedian")
SIMILAR += ("TrimmedMean", "MultiKrum", "GeometricMedian", "NormClipping")


def slow_if(similar: bool) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if similar else ()


each_kind = pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=slow_if(name in SIMILAR)) for name in ALGORITHMS]
)


def fitting_model(algorithm: str) -> Images:
    torch.manual_seed(0)
    return Images(norm=algorithm not in ("FedMA", "FedMA in one shot"))


def run(algorithm, module=None, partition=None, selection=None, weighting="samples", transforms=None, **options):
    callbacks = [*CLIENT_CALLBACKS.get(algorithm, []), *options.pop("callbacks", [])]
    client = LocalTraining(epochs=options.pop("epochs", 1), callbacks=callbacks, **options.pop("client", {}))
    server = FederatedServer(
        ALGORITHMS[algorithm](),
        weighting,
        client,
        options.pop("optimizer", None),
        transforms,
        options.pop("folder", None),
    )
    federated, trainer = federate(
        module or fitting_model(algorithm),
        options.pop("source", None) or Blobs(batch_size=16),
        partition or ClassesPerClient(6, 2),
        selection=selection,
        server=server,
        callbacks=options.pop("server_callbacks", ()),
        **options,
    )
    return dict(federated.state_dict()), trainer


#: combinations that are refused, see REFUSED
IMPOSSIBLE = {(name, "optimizer") for name in ALGORITHMS if "FedMA" in name}


#: algorithms with different aggregators, memories and client callbacks. With the others, single parts are slow tests.
VARIED = ("FedAvg", "FedNNNN by layer", "FedDNA", "Scaffold", "FedMA", "Ditto")
COMBINATIONS = [
    pytest.param(
        algorithm,
        part,
        marks=() if algorithm in VARIED or part in ("random clients", "everything at once") else pytest.mark.slow,
    )
    for algorithm in ALGORITHMS
    for part in PARTS
]


@pytest.mark.spread(3)
@pytest.mark.parametrize(("algorithm", "part"), COMBINATIONS)
def test_every_algorithm_works_with_every_other_part(algorithm, part):
    start = {name: value.clone() for name, value in fitting_model(algorithm).state_dict().items()}
    parts = {name: value for name, value in PARTS[part].items() if (algorithm, name) not in IMPOSSIBLE}
    state, trainer = run(algorithm, rounds=2, **parts)
    assert trainer.current_epoch == 2
    assert all(value.isfinite().all() for value in state.values())
    assert not torch.equal(state["conv.weight"], start["conv.weight"])


class Recurrent(Images):
    def __init__(self) -> None:
        super().__init__(norm=False)
        self.lstm = nn.LSTM(2, 2)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


REFUSED = {
    "FedMA with a server optimiser": ("FedMA", lambda: Images(norm=False), "leave server.optimizer out"),
    "FedMA with a layer that forward does not use": ("FedMA", Recurrent, "lstm"),
    "FedBN without normalisation": ("FedBN", lambda: Images(norm=False), "no normalisation layer"),
    "FedDNA without normalisation": ("FedDNA", lambda: Images(norm=False), "FedDNA"),
    "FedNova with Adam": ("FedNova", lambda: Images(optimizer=torch.optim.Adam), "Adam"),
    "Scaffold with Adam": ("Scaffold", lambda: Images(optimizer=torch.optim.Adam), "Adam"),
}


@pytest.mark.parametrize("combination", REFUSED)
def test_a_combination_that_cannot_work_is_refused_before_training_with_the_reason(combination):
    algorithm, make, reason = REFUSED[combination]

    class Untrained(make().__class__):
        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    module = make()
    module.__class__ = Untrained
    optimizer = adam if "server optimiser" in combination else None
    with pytest.raises(MisconfigurationError, match=reason) as error:
        run(algorithm, module, rounds=1, num_sanity_val_steps=0, optimizer=optimizer)
    assert algorithm in str(error.value)
    assert "\n" not in str(error.value)


#: the writers of Scaffold's and Ditto's memories are an aggregator and a client callback; the others are slow tests
in_memory_or_folder = pytest.mark.parametrize(
    ("algorithm", "folder"),
    [
        *(pytest.param(name, False, marks=slow_if(name in SIMILAR)) for name in ALGORITHMS),
        *(pytest.param(name, True, marks=slow_if(name not in ("Scaffold", "Ditto"))) for name in WITH_MEMORY),
    ],
)


@pytest.mark.spread(3)
@in_memory_or_folder
def test_two_processes_give_the_same_result_as_one_with_an_odd_number_of_clients(algorithm, folder, tmp_path):
    options = {"selection": RandomClients(count=3), "partition": ClassesPerClient(7, 2), "rounds": 3}
    one, _ = run(algorithm, devices=1, folder=str(tmp_path / "one") if folder else None, **options)
    two, _ = run(algorithm, strategy="ddp_fork", devices=2, folder=str(tmp_path / "two") if folder else None, **options)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)


@pytest.mark.spread(3)
@each_kind
def test_two_processes_resume_a_run_of_one_with_fewer_clients_than_processes(algorithm, tmp_path):
    options = {"selection": RandomClients(count=1), "partition": ClassesPerClient(3, 2)}
    whole, _ = run(algorithm, devices=1, rounds=4, **options)
    _, begun = run(algorithm, devices=1, rounds=2, **options)
    begun.save_checkpoint(tmp_path / "begun.ckpt")
    two = {"strategy": "ddp_fork", "devices": 2, "ckpt_path": tmp_path / "begun.ckpt"}
    resumed, _ = run(algorithm, rounds=4, **two, **options)
    for name in whole:
        torch.testing.assert_close(whole[name], resumed[name], rtol=1e-6, atol=1e-6)


def remembered(trainer) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
    """Return what the run remembers about its clients, by writer and client."""
    store = trainer.lightning_module.server.store
    writers = [key for kept in store.state_dict().values() for key in kept]
    return {(writer, client): store.get(writer, client) for writer in writers for client in store.clients(writer)}


def run_until_killed(round_: int, moment: str, **options) -> None:
    """Run until SIGKILL, in a forked process, because a new one would take eight seconds to import Lightning."""
    kill = Kill(round_, moment)
    process = multiprocessing.get_context("fork").Process(
        target=run, kwargs={"server_callbacks": [kill, LastRound()], "enable_checkpointing": True, **options}
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.spread(3)
@in_memory_or_folder
def test_a_run_that_is_killed_three_times_ends_like_an_uninterrupted_one(algorithm, folder, tmp_path):
    options = {"algorithm": algorithm, "selection": RandomClients(count=3), "rounds": 5}
    whole, whole_trainer = run(folder=str(tmp_path / "whole") if folder else None, **options)
    options |= {"folder": str(tmp_path / "kept") if folder else None, "default_root_dir": tmp_path}
    run_until_killed(1, "client", **options)
    last = tmp_path / "checkpoints" / "last.ckpt"
    run_until_killed(2, "validated", ckpt_path=last, **options)
    run_until_killed(3, "saved", ckpt_path=last, **options)
    resumed, trainer = run(ckpt_path=last, **options)
    assert identical(whole, resumed)
    assert bool(remembered(trainer)) == (algorithm in WITH_MEMORY)
    assert trainer.callback_metrics == whole_trainer.callback_metrics
    kept, expected = remembered(trainer), remembered(whole_trainer)
    assert kept.keys() == expected.keys()
    assert all(identical(kept[key], expected[key]) for key in expected)


def bare(updates: list[ClientUpdate]) -> list[ClientUpdate]:
    """Return the updates with only the four arguments that an aggregator needs."""
    return [ClientUpdate(u.client, u.state, u.num_samples, u.class_counts) for u in updates]


def fresh(algorithm: str) -> Aggregator:
    return ALGORITHMS[algorithm]()


@each_algorithm
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 4), weighting=st.sampled_from(["samples", "uniform"]))
@settings(max_examples=8, deadline=None)
def test_identical_clients_aggregate_to_that_client(algorithm, seed, count, weighting):
    generator = np.random.default_rng(seed)
    model = fitting_model(algorithm)
    state = random_state(model, generator)
    updates = [
        ClientUpdate(k, state, int(generator.integers(1, 99)), torch.tensor(generator.integers(0, 9, size=4)))
        for k in range(count)
    ]
    served = fresh(algorithm).aggregate(model, updates, weighting=weighting).served_state
    if algorithm == "FedDyn":  # h starts as -α times the clients' mean move, so the model moves twice as far
        start = model.state_dict()
        parameters = [name for name, _ in model.named_parameters()]
        state = state | {name: 2 * state[name] - start[name] for name in parameters}
    if "FedMA" in algorithm:  # the same function, but its units may be in another order
        twin = fitting_model(algorithm).eval()
        other = fitting_model(algorithm).eval()
        twin.load_state_dict(state)
        other.load_state_dict(served)
        inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(other(inputs), twin(inputs), rtol=1e-4, atol=1e-4)
        return
    for name in state:
        torch.testing.assert_close(served[name], state[name], rtol=1e-5, atol=1e-6)


@each_algorithm
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_permuting_the_clients_changes_nothing(algorithm, seed):
    generator = np.random.default_rng(seed)
    model = fitting_model(algorithm)
    updates = bare(random_updates(model, 5, generator))
    first = fresh(algorithm).aggregate(model, updates)
    second = fresh(algorithm).aggregate(model, [updates[i] for i in generator.permutation(5)])
    for one, two in ((first.state, second.state), (first.served_state, second.served_state)):
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=1e-5, atol=1e-6)


@each_algorithm
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_degenerate_updates_give_no_nan(algorithm, weighting, generator):
    model = fitting_model(algorithm)
    still = {name: value.clone() for name, value in model.state_dict().items()}
    nothing = torch.zeros(4, dtype=torch.int64)
    aggregator = fresh(algorithm)
    cases = [
        [ClientUpdate(0, still, 1, nothing)],
        [ClientUpdate(0, still, 1, nothing), ClientUpdate(1, still, 1, nothing)],
        [ClientUpdate(0, still, 5, nothing), ClientUpdate(1, random_state(model, generator), 1, nothing)],
        [ClientUpdate(k, {n: torch.zeros_like(v) for n, v in still.items()}, 1, nothing) for k in range(6)],
    ]
    for updates in cases:
        result = aggregator.aggregate(model, updates, weighting=weighting)
        for state in (result.state, result.served_state):
            assert all(value.isfinite().all() for value in state.values())
