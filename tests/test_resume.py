"""A killed and resumed run ends like an uninterrupted one: weights, logged metrics and cohorts."""

import pytest
import torch

from tests.runs import fl_lightning, scalars, succeeded, weights, write_config
from tests.toys import identical


def killed(tmp_path, name, round_, moment, **changes):
    callback = {"class_path": "tests.kill.Kill", "init_args": {"round": round_, "moment": moment}}
    trainer = changes.pop("trainer", {}) | {"default_root_dir": str(tmp_path / "killed"), "callbacks": [callback]}
    return write_config(tmp_path / f"{name}.yaml", trainer=trainer, **changes)


def test_a_run_that_is_killed_three_times_ends_like_an_uninterrupted_one(tmp_path):
    plain = write_config(tmp_path / "run.yaml", trainer={"default_root_dir": str(tmp_path / "plain")})
    succeeded(fl_lightning("fit", "--config", plain))
    undisturbed = tmp_path / "plain" / "run" / "version_0"

    run = tmp_path / "killed" / "first" / "version_0"
    last = run / "checkpoints" / "last.ckpt"
    resume: list[object] = []
    for name, round_, moment in [("first", 1, "client"), ("second", 4, "validated"), ("third", 7, "saved")]:
        process = fl_lightning("fit", "--config", killed(tmp_path, name, round_, moment), *resume)
        assert process.returncode == -9, process.stderr
        resume = ["--ckpt_path", last]
    final = write_config(tmp_path / "final.yaml", trainer={"default_root_dir": str(tmp_path / "killed")})
    printed = succeeded(fl_lightning("fit", "--config", final, *resume))

    assert "resumed at round 9" in printed
    assert identical(weights(run), weights(undisturbed))
    expected = scalars(undisturbed)
    assert {"train/loss", "val_loss", "val_accuracy", "bytes/up_total"} <= expected.keys()
    assert [step for step, _ in expected["train/loss"]] == list(range(10))
    assert scalars(run) == expected


@pytest.mark.parametrize(("signal_name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_the_run_with_its_exit_code_and_the_last_round_is_kept(tmp_path, signal_name, code):
    callback = {
        "class_path": "tests.kill.Kill",
        "init_args": {"round": 2, "moment": "client", "signal_name": signal_name},
    }
    trainer = {"default_root_dir": str(tmp_path), "callbacks": [callback], "max_epochs": 4}
    process = fl_lightning("fit", "--config", write_config(tmp_path / "run.yaml", trainer=trainer))
    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    checkpoint = torch.load(tmp_path / "run" / "version_0" / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 1
