"""What a failing client does to a federation: nothing, or it ends the run with the last good round kept."""

import pytest
import torch

from fl_lightning.callbacks import LastRound
from fl_lightning.core.errors import RoundFailedError
from tests.faults import Without, kept, run, same
from tests.test_every_algorithm import ALGORITHMS, VARIED, each_algorithm, fitting_model
from tests.toys import identical

#: in three rounds, three clients fail in three ways
PLAN = {(0, 1): "nan", (1, 2): "exception", (2, 0): "shape"}
FAULTS = {
    "nan": r"\.weight is not finite",
    "exception": "ValueError: the client exploded",
    "shape": r"\.weight has shape \[.*\], not \[.*\]",
    "missing": r"its state lacks \w+\.weight",
    "no samples": "it has 0 samples",
    "loss": "its loss is not finite",
}
DROP = {"on_error": "drop"}


@each_algorithm
def test_a_round_that_drops_a_client_is_a_round_without_it(algorithm):
    dropped, trainer = run(algorithm, PLAN, rounds=3, client=DROP)
    expected, without = run(algorithm, {}, rounds=3, selection=Without(PLAN))
    assert identical(dropped, expected)
    assert same(kept(trainer), kept(without))
    assert trainer.callback_metrics["round/dropped"] == 1
    assert trainer.callback_metrics["round/clients"] == 3


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name in VARIED else pytest.mark.slow) for name in ALGORITHMS]
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


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "part",
    [
        pytest.param({"client": {"execution": "vectorized"}}, id="all clients at once"),
        pytest.param({"client": {"execution": "vectorized", "chunk": 2}}, id="two clients at once"),
        pytest.param({"server": {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01)}}, id="server Adam"),
    ],
)
def test_every_fault_is_dropped_with_every_kind_of_training(part, fault):
    plan, client = {(0, 1): fault, (1, 1): fault}, part.get("client", {})
    dropped, trainer = run("Scaffold", plan, rounds=2, **{**part, "client": {**client, **DROP}})
    expected, without = run("Scaffold", {}, rounds=2, selection=Without(plan), **part)
    if "chunk" in client:  # the other clients train in other pairs, and results depend on pairs by rounding
        for name in expected:
            torch.testing.assert_close(dropped[name], expected[name], rtol=1e-5, atol=1e-6)
    else:
        assert identical(dropped, expected)
        assert same(kept(trainer), kept(without))
