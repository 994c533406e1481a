"""Settings that cannot work, each with the line that the command prints."""

import pytest

from fl_lightning.cli.failures import explain_failure, is_lightnings_mistake

CASES = {
    "a client's callback at the server": (
        ["--trainer.callbacks+=Ditto"],
        "Ditto is a callback of clients, but it is among trainer.callbacks: move it to client.callbacks",
    ),
    "a round callback at clients": (
        ["--client.callbacks+=Participation"],
        "Participation is a callback of the server, but it is among client.callbacks: move it to trainer.callbacks",
    ),
    "the summary at clients": (
        ["--client.callbacks+=RunSummary"],
        "RunSummary is a callback of the server, but it is among client.callbacks: move it to trainer.callbacks",
    ),
    "a second server": (
        ["--trainer.callbacks+=FederatedServer"],
        "Trainer cannot be created with these arguments, RuntimeError: Found more than one stateful callback of type",
    ),
    "no rounds": (
        ["--trainer.max_epochs", 0],
        "trainer.max_epochs=0, so there is no round: set it to 1 or more, or leave it out",
    ),
    "no steps": (
        ["--client.max_steps", 0],
        "max_steps=0, but a client must train: set client.max_steps above 0, or to -1",
    ),
    "no batches": (
        ["--client.limit_train_batches", 0],
        "limit_train_batches=0, but a client must train: set client.limit_train_batches above 0",
    ),
    "no accumulated batches": (
        ["--client.accumulate_grad_batches", 0],
        "accumulate_grad_batches=0: set client.accumulate_grad_batches to 1 or more",
    ),
    "a flag that is not finite": (
        ["--client.gradient_clip_val", ".nan"],
        "gradient_clip_val=nan is not a finite number: set client.gradient_clip_val to a finite number",
    ),
    "a flag that the client's Trainer refuses": (
        ["--client.limit_train_batches", 1.5],
        "limit_train_batches=1.5 is refused by a client's Trainer (You have passed invalid value 1.5 for",
    ),
    "a negative seed": (["--seed_everything", -1], f"seed_everything=-1: set it in [0, {2**32 - 1}]"),
    "a huge seed": (["--seed_everything", 2**70], f"seed_everything={2**70} is too large: set it in [0, {2**32 - 1}]"),
    "a huge seed of the data": (["--data.seed", 2**70], f"seed={2**70} is too large: set data.seed to 0 or more"),
    "a huge federation": (
        ["--data.partition.num_clients", 10**30],
        f"num_clients={10**30} is too large: set data.partition.init_args.num_clients to 1 or more",
    ),
    "an unusable folder": (
        ["--trainer.default_root_dir", "/dev/null/runs"],
        "cannot be used (Not a directory): set trainer.default_root_dir to one that can be written to",
    ),
    "an unusable folder for clients": (
        ["--server.client_folder", "/dev/null/clients"],
        "cannot be used (Not a directory): set server.client_folder to one that can be written to",
    ),
    "a server's optimiser that torch refuses": (
        ["--server.optimizer", "SGD", "--server.optimizer.lr", -1],
        "server.optimizer cannot move a model by a gradient (ValueError: Invalid learning rate: -1",
    ),
    "no rounds between validations": (
        ["--trainer.check_val_every_n_epoch", 0],
        "check_val_every_n_epoch=0: set trainer.check_val_every_n_epoch to 1 or more",
    ),
    "more processes than any machine can run": (
        ["--trainer.devices", 10**30],
        "set trainer.devices",
    ),
    "no nodes": (["--trainer.num_nodes", 0], "num_nodes=0: set trainer.num_nodes to 1 or more"),
    "plugins that are none": (
        ["--trainer.plugins", "[1]"],
        "trainer.plugins: this is not a Precision or ClusterEnvironment or CheckpointIO or LayerSync: name a class",
    ),
    "a null number of accumulated batches": (
        ["--client.accumulate_grad_batches", "null"],
        "client.accumulate_grad_batches: None is not of type int",
    ),
    "a strategy that is not there": (
        ["--trainer.strategy", "nonsense"],
        "Trainer cannot be created with these arguments, ValueError: You selected an invalid strategy name",
    ),
    "an accelerator that is not there": (
        ["--trainer.accelerator", "tpu"],
        "Trainer cannot be created with these arguments, ModuleNotFoundError: Requirement 'torch_xla",
    ),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", CASES)
def test_a_setting_that_cannot_work_is_refused_in_one_line(run, case):
    arguments, problem = CASES[case]
    code, out, err = run("fit", "--config", "run.yaml", *arguments)
    assert code == 2
    assert problem in err.splitlines()[-1]
    assert "After round" not in out


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("EarlyStopping", "Early stopping conditioned on metric `val_acc` which is not available"),
        ("StopAtTarget", "Early stopping conditioned on metric `val_acc` which is not available"),
        ("ModelCheckpoint", "`ModelCheckpoint(monitor='val_acc')` could not find the monitored key"),
    ],
)
def test_a_metric_that_nobody_logs_is_refused_after_the_first_round_with_those_that_are(run, tmp_path, name, problem):
    extra = ", target: 1" if name == "StopAtTarget" else ""
    (tmp_path / "m.yaml").write_text(
        f"trainer: {{callbacks+: [{{class_path: {name}, init_args: {{monitor: val_acc{extra}}}}}]}}"
    )
    code, _, err = run("fit", "--config", "run.yaml", "--config", "m.yaml")
    assert code == 2
    assert problem in err.splitlines()[-1]
    assert "val_accuracy" in err.splitlines()[-1]


def test_an_error_in_the_users_own_code_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    assert explain_failure(caught.value) is None


def test_lightnings_own_error_for_a_mistake_is_recognised_in_both_copies():
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    assert is_lightnings_mistake(MisconfigurationException("wrong"))
    assert not is_lightnings_mistake(ValueError("wrong"))
