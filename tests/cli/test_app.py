from pathlib import Path

import pytest
import torch
import yaml

from fl_lightning.models import Classifier
from tests.runs import REPOSITORY
from tests.toys import Net


def test_a_run_leaves_logs_config_and_checkpoint_and_prints_where_they_are(run, tmp_path):
    code, out, _ = run("fit", "--config", "run.yaml")
    folder = tmp_path / "runs" / "run" / "version_0"
    assert code == 0
    assert (
        "Net, 108 parameters on cpu | 10 clients, 5 per round | 2 rounds, local epochs 2 | FedAvg, weighting samples"
        in out
    )
    for line in ("val_accuracy", "runs/run/version_0/checkpoints/last.ckpt", "tensorboard --logdir runs/run/version_0"):
        assert line in out
    assert Net.load_from_checkpoint(folder / "checkpoints" / "last.ckpt").hparams.batch_norm is True
    assert yaml.safe_load((folder / "config.yaml").read_text())["ckpt_path"] is None


def test_the_saved_config_gives_the_same_run_again_beside_it(run, tmp_path):
    run("fit", "--config", "run.yaml")
    code, _, _ = run("fit", "--config", "runs/run/version_0/config.yaml")
    first, again = (
        torch.load(tmp_path / f"runs/run/version_{n}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for n in (0, 1)
    )
    assert code == 0
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_validate_and_test_evaluate_a_checkpoint_and_write_nothing(run, tmp_path):
    run("fit", "--config", "run.yaml")
    before = sorted(tmp_path.rglob("*"))
    for command, metric in (("validate", "val_accuracy"), ("test", "test_accuracy")):
        code, out, err = run(command, "--config", "runs/run/version_0/config.yaml", "--ckpt_path", "last")
        assert code == 0, err
        assert metric in out
    assert sorted(tmp_path.rglob("*")) == before


def test_last_resumes_the_newest_run(run):
    run("fit", "--config", "run.yaml")
    code, out, _ = run("fit", "--config", "run.yaml", "--ckpt_path", "last", "--trainer.max_epochs", 3)
    assert code == 0
    assert "resumed at round 3" in out
    assert "runs/run/version_0" in out


def test_last_with_the_config_of_a_run_is_the_last_checkpoint_of_that_run(run):
    run("fit", "--config", "run.yaml")
    run("fit", "--config", "run.yaml", "--seed_everything", 8)
    own = ["--config", "runs/run/version_0/config.yaml", "--ckpt_path", "last"]
    code, out, _ = run("fit", *own, "--trainer.max_epochs", 3)
    assert code == 0
    assert "checkpoint             runs/run/version_0/checkpoints/last.ckpt" in out


@pytest.mark.parametrize(("rounds", "finished"), [(2, "its 2 rounds"), (1, "its only round")])
def test_a_run_that_has_finished_says_so_when_it_is_resumed(run, tmp_path, rounds, finished):
    arguments = ["fit", "--config", "run.yaml", "--trainer.max_epochs", rounds]
    run(*arguments)
    last = tmp_path / "runs/run/version_0/checkpoints/last.ckpt"
    before = last.read_bytes()
    code, out, _ = run(*arguments, "--ckpt_path", "last")
    assert code == 0
    assert out == f"This run has already finished {finished}: to train more, set --trainer.max_epochs above {rounds}\n"
    assert last.read_bytes() == before


def test_every_run_without_a_logger_has_a_folder_from_which_it_is_resumed(run, tmp_path):
    arguments = ["fit", "--config", "run.yaml", "--trainer.logger", "false"]
    for number in (0, 1):
        code, out, err = run(*arguments)
        assert code == 0, err
        assert f"runs/run/version_{number}/checkpoints/last.ckpt" in out
    code, out, err = run(*arguments, "--ckpt_path", "last", "--trainer.max_epochs", 3)
    assert code == 0, err
    assert "resumed at round 3" in out
    assert {path.name for path in tmp_path.iterdir()} == {"run.yaml", "runs"}
    assert {path.name for path in (tmp_path / "runs/run").iterdir()} == {"version_0", "version_1"}


def test_a_run_without_logger_and_checkpoints_leaves_nothing_behind(run, tmp_path):
    code, _, err = run(
        "fit", "--config", "run.yaml", "--trainer.logger", "false", "--trainer.enable_checkpointing", "false"
    )
    assert code == 0, err
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_run_that_is_resumed_with_other_settings_saves_them(run, tmp_path):
    run("fit", "--config", "run.yaml")
    folder = tmp_path / "runs/run/version_0"
    changes = ["--trainer.max_epochs", 3, "--client.epochs", 5]
    _, out, _ = run("fit", "--config", "run.yaml", "--ckpt_path", folder / "checkpoints/last.ckpt", *changes)
    assert "see config_from_round_3.yaml" in out
    assert yaml.safe_load((folder / "config_from_round_3.yaml").read_text())["client"]["epochs"] == 5
    assert yaml.safe_load((folder / "config.yaml").read_text())["client"]["epochs"] == 2


def test_evaluating_without_a_checkpoint_causes_a_warning(run):
    with pytest.warns(UserWarning, match="validate uses an untrained model: set --ckpt_path"):
        run("validate", "--config", "run.yaml")


def test_later_configs_override_earlier_ones_and_the_command_line_overrides_all(run, tmp_path):
    (tmp_path / "overlay.yaml").write_text(
        yaml.safe_dump(
            {
                "server": {"weighting": "uniform"},
                "data": {"partition": {"class_path": "IID", "init_args": {"num_clients": 6}}},
            }
        )
    )
    code, out, _ = run(
        "fit", "--config", "run.yaml", "--config", "overlay.yaml", "--client.epochs", 4, "--print_config"
    )
    config = yaml.safe_load(out)
    assert code == 0
    assert config["server"]["weighting"] == "uniform"
    assert config["data"]["partition"]["init_args"] == {
        "num_clients": 6,
        "sizes": "balanced",
        "exponent": 1.0,
        "min_samples": 1,
    }
    assert config["client"]["epochs"] == 4
    assert config["client"]["gradient_clip_val"] is None
    assert not {"max_epochs", "logger", "accelerator"} & config["client"].keys()


def test_the_precision_of_matrix_products_is_a_setting(run):
    before = torch.get_float32_matmul_precision()
    try:
        code, _, err = run("fit", "--config", "run.yaml", "--float32_matmul_precision", "medium")
        assert code == 0, err
        assert torch.get_float32_matmul_precision() == "medium"
        run("fit", "--config", "run.yaml")
        assert torch.get_float32_matmul_precision() == "medium"  # not set: what the program has chosen stays
    finally:
        torch.set_float32_matmul_precision(before)


def test_any_torch_optimiser_can_be_the_server_optimiser(run):
    code, out, err = run("fit", "--config", "run.yaml", "--server.optimizer", "Adagrad", "--server.optimizer.lr", 0.01)
    assert code == 0, err
    assert "FedAvg with Adagrad" in out


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--data.partition.classes", 12],
            "classes=12, but the data set has 4: set data.partition.init_args.classes to 4 or fewer",
        ),
        (["--data.partition.num_clients", 500], "num_clients=500, but the data set has 120 samples"),
        (["--data.selection", "RandomClients", "--data.selection.fraction", 1.5], "fraction=1.5"),
        (["--data.selection.count", 11], "count=11, but there are 10 clients"),
        (
            ["--data.partition", "IIDD"],
            "data.partition: IIDD is not a known class: use ByColumn, ByList, ClassesPerClient, Dirichlet",
        ),
        (["--model", "nowhere.Net"], "No module named 'nowhere'"),
        (["--model", "LightningModule"], "LightningModule has no training_step"),
        (["--server.weighting", "size"], "server.weighting: size is not one of 'samples', 'uniform'"),
        (["--client.epochs", "many"], "client.epochs: many is not of type int or list"),
        (["--client.epochs", 0], "epochs=0"),
        (["--client.batch_size", 1], "batch_size=1, but BatchNorm needs two samples"),
        (
            ["--float32_matmul_precision", "low"],
            "float32_matmul_precision: low is not one of 'highest', 'high', 'medium'",
        ),
        (["--float32_matmul_precision="], "float32_matmul_precision: '' is not one of 'highest', 'high', 'medium'"),
        (["--nonsense", 1], "unrecognized arguments: --nonsense"),
        (["--trainer.max_epoch", 3], "unrecognized arguments: --trainer.max_epoch 3: did you mean trainer.max_epochs"),
        (["--ckpt_path", "nowhere.ckpt"], "ckpt_path=nowhere.ckpt: there is no such file"),
        (["--ckpt_path", "run.yaml"], "ckpt_path=run.yaml is not a checkpoint"),
        (["--ckpt_path", "best"], "ckpt_path=best: there is no such file"),
        (["--data.seed", -1], "seed=-1"),
        (["--ckpt_path", "last"], "runs/run has no checkpoint: run fit without --ckpt_path first"),
        (["--trainer.gradient_clip_val", 1], "set client.gradient_clip_val instead"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_mistake_is_reported_in_one_line_and_leaves_nothing_behind(run, tmp_path, arguments, message):
    code, _, err = run("fit", "--config", "run.yaml", *arguments)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in err
    assert not list(tmp_path.glob("runs/*/*"))


def test_a_folder_that_holds_a_run_is_not_overwritten(run, tmp_path):
    logger = [
        "--trainer.logger",
        "TensorBoardLogger",
        "--trainer.logger.save_dir",
        "mine",
        "--trainer.logger.version",
        "a",
    ]
    assert run("fit", "--config", "run.yaml", *logger)[0] == 0
    config = next(tmp_path.glob("mine/**/config.yaml"))
    before = config.read_bytes()
    run("fit", "--config", "run.yaml")
    other_run = ["--ckpt_path", "runs/run/version_0/checkpoints/last.ckpt"]
    for more in (["--client.epochs", 3], other_run):
        code, _, err = run("fit", "--config", "run.yaml", *logger, *more)
        assert code == 2
        assert "already holds a run: choose another folder" in err
        assert config.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ["--model.hidden", 5],
            "different model: layers.0.weight is of shape (8, 6) there and of shape (5, 6)",
        ),
        (["--seed_everything", 9], "a run with seed=3, but this one has seed=9"),
    ],
)
def test_a_checkpoint_of_another_experiment_is_refused_and_kept(run, tmp_path, change, message):
    run("fit", "--config", "run.yaml")
    last = tmp_path / "runs/run/version_0/checkpoints/last.ckpt"
    before = last.read_bytes()
    code, _, err = run("fit", "--config", "run.yaml", "--ckpt_path", last, "--trainer.max_epochs", 5, *change)
    assert code == 2
    assert message in err
    assert last.read_bytes() == before


def test_a_bug_keeps_its_traceback(run, tmp_path, monkeypatch):
    def broken(self, batch, batch_idx):
        raise ZeroDivisionError("a bug in the user's module")

    monkeypatch.setattr(Net, "validation_step", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run("fit", "--config", "run.yaml")


@pytest.mark.slow
def test_no_key_of_the_demo_only_repeats_a_default(run):
    def leaves(tree, prefix=()):
        for key, value in tree.items() if isinstance(tree, dict) else ():
            if isinstance(value, dict):
                yield from leaves(value, (*prefix, key))
            elif key != "class_path":
                yield (*prefix, key), value

    def without(tree, path):
        head, *rest = path
        return {
            k: (without(v, rest) if rest else None) if k == head else v for k, v in tree.items() if rest or k != head
        }

    config = REPOSITORY / "configs" / "demo.yaml"
    written = yaml.safe_load(config.read_text())
    _, printed, err = run("fit", "--config", config, "--print_config")
    assert printed, err
    for path, value in leaves(written):
        Path("less.yaml").write_text(yaml.safe_dump(without(written, path)))
        code, out, _ = run("fit", "--config", "less.yaml", "--print_config")
        assert code == 2 or out != printed, f"{'.'.join(path)}: {value} repeats a default"


def test_the_bundled_classifier_loads_from_a_checkpoint_of_the_demo(run, tmp_path):
    code, _, err = run("fit", "--config", REPOSITORY / "configs/demo.yaml", "--trainer.max_epochs", 1)
    assert code == 0, err
    last = tmp_path / "runs/demo/version_0/checkpoints/last.ckpt"
    model = Classifier.load_from_checkpoint(last)
    saved = torch.load(last, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    assert model.configure_optimizers().param_groups[0]["lr"] == 0.05


OVERLAYS = sorted(
    path for folder in ("algorithms", "attacks") for path in (REPOSITORY / "configs" / folder).glob("*.yaml")
)


def test_clients_of_the_command_train_at_once(run):
    """The parsed config has every flag of a client's Trainer, most of them with their defaults."""
    code, _, err = run("fit", "--config", "run.yaml", "--model.dropout", 0, "--client.execution", "vectorized")
    assert code == 0, err


@pytest.mark.spread(10)
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.stem)
def test_every_algorithm_and_every_attack_runs_from_its_overlay_on_the_demo(run, overlay):
    if overlay.stem == "dp_fedavg":
        pytest.importorskip("dp_accounting", reason="dp-accounting (extra privacy) is not installed")
    norm = ["--model.net.batch_norm", "false" if overlay.stem == "dp_fedavg" else "true"]
    short = ["--trainer.max_epochs", 1, "--client.epochs", 1, "--client.limit_train_batches", 2]
    short += ["--trainer.limit_val_batches", 1, "--trainer.enable_progress_bar", "false"]
    code, out, err = run("fit", "--config", REPOSITORY / "configs/demo.yaml", "--config", overlay, *norm, *short)
    assert code == 0, err
    assert "After round 1\n" in out
    assert f"runs/demo-{overlay.stem}/version_0" in out


def test_overlays_of_two_algorithms_combine(run):
    overlays = [REPOSITORY / "configs/algorithms" / f"{name}.yaml" for name in ("fednnnn", "n_fedavg")]
    configs = [argument for overlay in overlays for argument in ("--config", overlay)]
    code, out, _ = run("fit", "--config", REPOSITORY / "configs/demo.yaml", *configs, "--print_config=skip_default")
    config = yaml.safe_load(out)
    assert code == 0
    assert config["server"]["aggregator"]["class_path"].endswith("FedNNNN")
    assert config["server"]["transforms"][0]["class_path"].endswith("BernoulliMask")
    assert config["data"]["selection"]["class_path"].endswith("SequentialClients")
    assert config["client"]["callbacks"][0]["class_path"].endswith("CosineAnnealing")
