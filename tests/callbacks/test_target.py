"""A run ends in the round in which it reaches its target, whether or not it was killed there."""

import os
import signal

import pytest
from pytorch_lightning import Callback

from fl_lightning.callbacks import StopAtTarget
from tests.runs import fl_lightning, scalars, weights, write_config
from tests.toys import Net, federate, identical


class Scripted(Net):
    """Logs given values of a metric, one per round."""

    def __init__(self, metric, values):
        super().__init__()
        self.metric, self.values = metric, values

    def on_validation_epoch_end(self):
        self.log(self.metric, self.values[self.trainer.current_epoch])


class KillAtEnd(Callback):
    """Kills the process after the last round was saved."""

    def on_train_end(self, trainer, pl_module):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("metric", "values", "rounds"),
    [
        ("score", [0.5, 0.94, 0.95, 0.9, 0.9], 3),
        ("score", [0.5, 0.96, 0.95, 0.9, 0.9], 2),
        ("score", [0.5, float("nan"), 0.4, 0.3, 0.2], 5),
        ("my_loss", [3.0, 0.96, 0.95, 0.9, 0.9], 3),
        ("my_loss", [3.0, 2.0, float("inf"), 3.0, 3.0], 5),
    ],
)
def test_a_run_ends_when_it_reaches_the_target_and_for_no_other_reason(metric, values, rounds):
    _, trainer = federate(Scripted(metric, values), rounds=5, callbacks=[StopAtTarget(metric, 0.95)])
    assert trainer.current_epoch == rounds


def test_a_run_that_is_killed_after_reaching_the_target_trains_no_further_round(tmp_path):
    def run(name, *more, callbacks=(), code=0):
        trainer = {"default_root_dir": str(tmp_path / name), "callbacks": list(callbacks), "max_epochs": 8}
        process = fl_lightning("fit", "--config", write_config(tmp_path / "run.yaml", trainer=trainer), *more)
        assert process.returncode == code, process.stderr
        return tmp_path / name / "run" / "version_0"

    whole = [value for _, value in scalars(run("whole"))["val_accuracy"]]
    target = max(whole[:5])
    last = whole.index(target)
    stop = {"class_path": "StopAtTarget", "init_args": {"monitor": "val_accuracy", "target": target}}
    undisturbed = scalars(run("stopped", callbacks=[stop]))
    assert [value for _, value in undisturbed["val_accuracy"]] == whole[: last + 1]

    kill = {"class_path": "tests.callbacks.test_target.KillAtEnd"}
    folder = run("killed", callbacks=[stop, kill], code=-9)
    run("killed", "--ckpt_path", folder / "checkpoints" / "last.ckpt", callbacks=[stop])
    assert scalars(folder) == undisturbed
    assert identical(weights(folder), weights(tmp_path / "stopped" / "run" / "version_0"))
