"""What a failing client does to a federation: nothing, or it ends the run with the last good round kept."""

import copy
import multiprocessing
import re
import signal
import time
from itertools import product

import pytest
import torch
from pytorch_lightning import Callback

from fl_lightning.callbacks import FederatedServer, LastRound
from fl_lightning.core.errors import RoundFailedError
from fl_lightning.transforms import UploadTransform
from tests.faults import Without, kept, run, same, spoil
from tests.kill import Kill
from tests.test_every_algorithm import ALGORITHMS, Images, each_kind, fitting_model
from tests.toys import identical

#: in two rounds, three clients fail in three ways
PLAN = {(0, 1): "nan", (0, 2): "exception", (1, 0): "shape"}
FAULTS = {
    "nan": r"\.weight is not finite",
    "exception": "ValueError: the client exploded",
    "shape": r"\.weight has shape \[.*\], not \[.*\]",
    "missing": r"its state lacks \w+\.weight",
    "no samples": "it has 0 samples",
    "loss": "its loss is not finite",
}
DROP = {"on_error": "drop"}
#: algorithms with two models, with memory and with layers of each client; the others are slow tests
STOPPED = ("FedNNNN by layer", "Scaffold", "FedMA")
#: the fault after which clients that train at once train alone
EXPLOSION = ("all clients at once", "exception")


@each_kind
def test_a_round_that_drops_a_client_is_a_round_without_it(algorithm):
    dropped, trainer = run(algorithm, PLAN, rounds=2, client=DROP)
    expected, without = run(algorithm, {}, rounds=2, selection=Without(PLAN))
    assert identical(dropped, expected)
    assert same(kept(trainer), kept(without))
    assert trainer.callback_metrics["round/dropped"] == 1
    assert trainer.callback_metrics["round/clients"] == 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("extras", r"extras\['control'\] has shape \[3, 3\], not"),
        ("memory", "'control' in the memory of ControlVariates"),
    ],
)
@pytest.mark.parametrize("execution", ["trainer", "vectorized"])
def test_what_a_client_sends_along_or_remembers_is_dropped_or_stops_the_run(fault, reason, execution):
    plan, client = {(0, 1): fault, (1, 2): fault}, {"execution": execution}
    dropped, trainer = run("Scaffold", plan, rounds=3, client=client | DROP)
    expected, without = run("Scaffold", {}, rounds=3, client=client, selection=Without(plan))
    assert identical(dropped, expected)
    assert same(kept(trainer), kept(without))
    with pytest.raises(RoundFailedError, match=f"^client 1 failed in round 1: {reason}"):
        run("Scaffold", plan, client=client)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name in STOPPED else pytest.mark.slow) for name in ALGORITHMS]
)
def test_a_run_that_a_client_stops_keeps_the_last_round_and_can_be_resumed(algorithm, tmp_path):
    whole, whole_trainer = run(algorithm, {}, rounds=2)
    options = {"rounds": 2, "default_root_dir": tmp_path, "enable_checkpointing": True}
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    for number, fault in enumerate(("nan", "exception", "shape")):
        begun, module = checkpoint.read_bytes() if number else None, fitting_model(algorithm)
        with pytest.raises(RoundFailedError, match=f"^client 2 failed in round 2: .*{FAULTS[fault]}"):
            run(
                algorithm,
                {(1, 2): fault},
                module,
                callbacks=[LastRound()],
                ckpt_path=checkpoint if number else None,
                **options,
            )
        assert begun is None or checkpoint.read_bytes() == begun
        assert identical(dict(module.state_dict()), torch.load(checkpoint)["state_dict"])
    resumed, trainer = run(algorithm, {}, callbacks=[LastRound()], ckpt_path=checkpoint, **options)
    assert identical(whole, resumed)
    assert same(kept(trainer), kept(whole_trainer))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_in_one_line_with_client_and_round(fault):
    with pytest.raises(RoundFailedError, match=f"^client 3 failed in round 1: .*{FAULTS[fault]}$") as error:
        run("FedAvg", {(0, 3): fault}, rounds=1)
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, ValueError) == (fault == "exception")


PARTS = {
    "all clients at once": {"client": {"execution": "vectorized"}},
    "two clients at once": {"client": {"execution": "vectorized", "chunk": 2}},
    "server Adam": {"server": {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.01)}},
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, marks=() if fault == "nan" or (name, fault) == EXPLOSION else pytest.mark.slow)
        for name in PARTS
        for fault in FAULTS
    ],
)
def test_every_fault_is_dropped_with_every_kind_of_training(name, fault):
    part = PARTS[name]
    plan, client = {(0, 1): fault, (1, 1): fault}, part.get("client", {})
    dropped, trainer = run("Scaffold", plan, rounds=2, **{**part, "client": {**client, **DROP}})
    expected, without = run("Scaffold", {}, rounds=2, selection=Without(plan), **part)
    if "chunk" in client:  # the other clients train in other pairs, and results depend on pairs by rounding
        for name in expected:
            torch.testing.assert_close(dropped[name], expected[name], rtol=1e-5, atol=1e-6)
    else:
        assert identical(dropped, expected)
        assert same(kept(trainer), kept(without))


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """Return a function that says how each of two processes ended."""
    run_round = FederatedServer.run_round

    def observed(self, pl_module, clients):
        try:
            run_round(self, pl_module, clients)
        except Exception as error:
            rank = pl_module.trainer.global_rank
            (tmp_path / f"rank_{rank}").write_text(f"{type(error).__name__}: {error}")
            deadline = time.monotonic() + 30  # the first process that ends takes the other along
            while not (tmp_path / f"rank_{1 - rank}").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise

    monkeypatch.setattr(FederatedServer, "run_round", observed)
    return lambda: [(tmp_path / f"rank_{rank}").read_text() for rank in range(2)]


TWO = {"strategy": "ddp_fork", "devices": 2}
FAULTS_ON_RANKS = {
    "one client of a rank": {(0, 1): "nan", (1, 0): "exception"},
    "all clients of a rank": {  # with three of four clients, whichever rank they are on
        **{(0, client): "exception" for client in (0, 2, 3)},
        **{(1, client): "nan" for client in (0, 1, 3)},
    },
}


@pytest.mark.parametrize(
    ("algorithm", "faults"),
    [
        ("Scaffold", "one client of a rank"),
        ("FedMA", "all clients of a rank"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product(("FedAdp", "FedDNA"), FAULTS_ON_RANKS)),
    ],
)
def test_two_processes_drop_the_clients_that_one_drops(algorithm, faults):
    plan = FAULTS_ON_RANKS[faults]
    one, trainer = run(algorithm, plan, rounds=2, client=DROP, devices=1)
    two, other = run(algorithm, plan, rounds=2, client=DROP, **TWO)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-6, atol=1e-6)
    for name in ("round/dropped", "round/clients", "bytes/up"):
        assert trainer.callback_metrics[name] == other.callback_metrics[name]


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        ({(1, 1): "nan"}, {}, r"client 1 failed in round 2: conv\.weight is not finite"),
        ({(1, 2): "exception"}, {}, "client 2 failed in round 2: ValueError: the client exploded"),
        (
            {(1, 1): "nan", (1, 2): "shape"},
            {"client": DROP, "server": {"min_clients": 3}},
            "round 2 has lost 2 of its 4 clients, but server.min_clients=3: .*",
        ),
    ],
)
def test_all_processes_end_when_a_client_of_one_stops_the_run(plan, options, message, ends):
    with pytest.raises(Exception, match="RoundFailedError"):
        run("FedAvg", plan, rounds=2, **options, **TWO)
    first, second = ends()
    assert first == second
    assert re.fullmatch(f"RoundFailedError: {message}", first)


def test_a_run_that_drops_clients_and_is_killed_ends_like_an_uninterrupted_one(tmp_path):
    options = {"rounds": 3, "client": {**DROP, "dropout": 0.2, "epochs": [1, 3]}}
    whole, whole_trainer = run("Scaffold", PLAN, **options)
    kill, saved = Kill(1, "client"), {"default_root_dir": tmp_path, "enable_checkpointing": True}
    process = multiprocessing.get_context("fork").Process(
        target=run, args=("Scaffold", PLAN), kwargs={"callbacks": [kill, LastRound()], **options, **saved}
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    resumed, trainer = run("Scaffold", PLAN, ckpt_path=tmp_path / "checkpoints" / "last.ckpt", **options)
    assert identical(whole, resumed)
    assert same(kept(trainer), kept(whole_trainer))
    assert trainer.callback_metrics == whole_trainer.callback_metrics


def test_clients_that_fail_are_dropped_before_a_transform_sees_them():
    class Curious(UploadTransform):
        def __call__(self, update, round, layout):
            seen.append(update.client)
            return update

    seen = []
    plan = {(0, 0): "nan", (0, 2): "shape"}
    run("FedAvg", plan, rounds=1, client=DROP, server={"transforms": [Curious()]})
    assert seen == [1, 3]


def test_an_update_that_a_transform_spoils_is_lost_too():
    class Overflow(UploadTransform):
        def __call__(self, update, round, layout):
            return spoil(update, "nan") if update.client == 2 else update

    with pytest.raises(RoundFailedError, match=r"client 2 failed in round 1: conv\.weight is not finite"):
        run("FedAvg", {}, rounds=1, server={"transforms": [Overflow()]})


def test_a_client_whose_loss_explodes_while_it_trains_is_lost():
    class Exploding(Images):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e30)

    with pytest.raises(RoundFailedError, match=r"client 0 failed in round 1: .* is not finite"):
        run("FedAvg", {}, Exploding(), rounds=1)


def test_what_dropped_clients_raised_is_kept_in_the_folder_of_the_run(tmp_path, caplog):
    plan, options = {(0, 1): "exception", (1, 3): "exception", (1, 0): "nan"}, {"enable_checkpointing": True}
    run("FedAvg", plan, rounds=2, client=DROP, callbacks=[LastRound()], default_root_dir=tmp_path, **options)
    log = tmp_path / "client_errors.log"
    text = log.read_text()
    assert re.findall(r"^Client \d, round \d$", text, re.MULTILINE) == ["Client 1, round 1", "Client 3, round 2"]
    assert text.count("in on_client_start") == text.count("ValueError: the client exploded\nin a strange way") == 2
    lines = [record.message for record in caplog.records if "dropped" in record.message]
    error = f"ValueError: the client exploded (traceback in {log})"
    assert lines == [
        f"client 1 was dropped from round 1: {error}",
        "client 0 was dropped from round 2: conv.weight is not finite",
        f"client 3 was dropped from round 2: {error}",
    ]


def test_a_run_without_files_writes_no_traceback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("FedAvg", {(0, 1): "exception"}, rounds=1, client=DROP)
    assert list(tmp_path.iterdir()) == []


def test_a_traceback_that_cannot_be_written_does_not_hide_the_reason(tmp_path, monkeypatch):
    (tmp_path / "client_errors.log").mkdir()
    options = {"default_root_dir": tmp_path, "enable_checkpointing": True, "callbacks": [LastRound()]}
    with pytest.raises(RoundFailedError, match=r"^client 1 failed in round 1: ValueError: the client exploded$"):
        run("FedAvg", {(0, 1): "exception"}, rounds=1, **options)


@pytest.mark.parametrize("algorithm", ["FedAvg", "FedNNNN", "FedAdp", "MultiKrum", "Scaffold"])
def test_a_huge_update_stops_the_round_that_it_ruins_and_the_last_round_is_kept(algorithm, tmp_path):
    options = {"rounds": 2, "default_root_dir": tmp_path, "enable_checkpointing": True}
    module = fitting_model(algorithm)
    with pytest.raises(RoundFailedError) as error:
        run(algorithm, {(1, 2): "huge"}, module, callbacks=[LastRound()], **options)
    assert re.fullmatch(
        r"round 2 would make conv\.weight of the global model as large as [\w.+]+(, but numbers beyond 1\.8e\+19"
        r" overflow)?; client 2 sent such numbers, 3e\+38 in conv\.weight: set client\.on_error to drop, or"
        r" server\.aggregator to one that withstands bad clients, such as CoordinateMedian",
        str(error.value),
    )
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    assert identical(dict(module.state_dict()), torch.load(checkpoint)["state_dict"])
    whole, whole_trainer = run(algorithm, {}, rounds=2)
    resumed, trainer = run(algorithm, {}, callbacks=[LastRound()], ckpt_path=checkpoint, **options)
    assert identical(whole, resumed)
    assert same(kept(trainer), kept(whole_trainer))


def test_a_huge_update_is_dropped_like_one_that_is_not_finite():
    dropped, trainer = run("Scaffold", {(0, 1): "huge"}, rounds=2, client=DROP)
    expected, without = run("Scaffold", {}, rounds=2, selection=Without({(0, 1): "huge"}))
    assert identical(dropped, expected)
    assert same(kept(trainer), kept(without))


def test_a_robust_aggregator_leaves_a_huge_update_out_and_goes_on():
    state, trainer = run("CoordinateMedian", {(0, 1): "huge", (1, 2): "huge"}, rounds=3)
    assert max(float(value.abs().max()) for value in state.values()) < 100
    assert trainer.current_epoch == 3


def test_a_server_that_ruins_the_model_stops_the_round_without_blaming_a_client(tmp_path):
    def leap(parameters):
        return torch.optim.SGD(parameters, lr=1e38)

    options = {"default_root_dir": tmp_path, "enable_checkpointing": True, "callbacks": [LastRound()]}
    module = fitting_model("FedAvg")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    message = (
        r"^round 1 would make .* no client sent such numbers: lower the learning rate of the clients or of the serv"
    )
    with pytest.raises(RoundFailedError, match=message):
        run("FedAvg", {}, module, rounds=2, server={"optimizer": leap}, **options)
    assert identical(dict(module.state_dict()), before)
    assert not (tmp_path / "checkpoints").exists()


class LeapsInSecondRound(torch.optim.Adam):
    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] = 1e30 if self.state else 0.01
        return super().step(closure)


def test_a_round_that_the_server_ruins_leaves_the_servers_optimiser_as_it_was():
    states = []

    class Watch(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            states.append(copy.deepcopy(trainer.optimizers[0].state_dict()))

        def on_exception(self, trainer, pl_module, exception):
            states.append(trainer.optimizers[0].state_dict())

    with pytest.raises(RoundFailedError, match="round 2 would make"):
        run("FedAvg", {}, rounds=3, server={"optimizer": LeapsInSecondRound}, callbacks=[Watch()])
    after_first, after_failure = states
    assert same(after_failure, after_first)


def test_two_processes_name_the_client_whose_update_is_huge(ends):
    with pytest.raises(Exception, match="RoundFailedError"):
        run("FedAvg", {(1, 1): "huge"}, rounds=2, **TWO)
    first, second = ends()
    assert first == second
    assert re.match(
        r"RoundFailedError: round 2 would make .* client 1 sent such numbers, 3e\+38 in conv\.weight", first
    )
