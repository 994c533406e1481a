import os

import pytest
import yaml

from fl_lightning.cli.checkpoints import find_last_checkpoint
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder


def config(epochs=1, rounds=10, seed=0, **more):
    return {
        "seed_everything": seed,
        "client": {"epochs": epochs},
        "trainer": {"max_epochs": rounds},
        "ckpt_path": None,
        **more,
    }


@pytest.fixture
def write_run(tmp_path):
    """Write runs without weights. Each is newer than the one before."""

    def write(name, *configs):
        run = RunFolder(tmp_path / name)
        run.checkpoint.parent.mkdir(parents=True)
        run.checkpoint.touch()
        for number, one in enumerate(configs):
            (run.config if number == 0 else run.config_from_round(number)).write_text(yaml.safe_dump(one))
        written = len(list(tmp_path.iterdir()))
        os.utime(run.path, (written, written))
        return run

    return write


def test_last_is_the_newest_run_with_the_same_settings(write_run, tmp_path):
    write_run("version_0", config())
    same = write_run("version_1", config())
    write_run("version_2", config(epochs=5))
    write_run("version_3", config(seed=1))
    assert find_last_checkpoint(tmp_path, config(), ()) == same.checkpoint


def test_a_run_with_the_same_number_of_rounds_comes_before_a_newer_one_with_another(write_run, tmp_path):
    same = write_run("version_0", config(rounds=100))
    write_run("version_1", config(rounds=10))
    assert find_last_checkpoint(tmp_path, config(rounds=100), ()) == same.checkpoint


def test_a_run_is_continued_for_more_rounds(write_run, tmp_path):
    run = write_run("version_0", config(rounds=10))
    write_run("version_1", config(epochs=5, rounds=20))
    assert find_last_checkpoint(tmp_path, config(rounds=20), ()) == run.checkpoint


def test_a_run_is_also_found_by_the_settings_that_it_was_resumed_with(write_run, tmp_path):
    run = write_run("version_0", config(epochs=1), config(epochs=5))
    for epochs in (1, 5):
        assert find_last_checkpoint(tmp_path, config(epochs=epochs), ()) == run.checkpoint


def test_an_option_that_is_newer_than_the_run_matters_only_if_it_is_set(write_run, tmp_path):
    run = write_run("version_0", config())
    newer = config(server={"weighting": "samples"})
    assert find_last_checkpoint(tmp_path, newer, ()) == run.checkpoint
    with pytest.raises(MisconfigurationError, match=r"was run with server\.weighting=nothing, not samples"):
        find_last_checkpoint(tmp_path, newer, ("server.weighting",))


def test_options_that_belong_to_one_command_do_not_matter(write_run, tmp_path):
    run = write_run("version_0", config())
    assert find_last_checkpoint(tmp_path, config(verbose=False, ckpt_path="last"), ()) == run.checkpoint


def test_if_no_run_has_the_settings_the_error_names_the_newest_and_the_difference(write_run, tmp_path):
    write_run("version_0", config(epochs=3))
    newest = write_run("version_1", config(epochs=5, rounds=3))
    with pytest.raises(MisconfigurationError) as error:
        find_last_checkpoint(tmp_path, config(), ())
    assert str(error.value) == (
        f"ckpt_path=last, but {newest} was run with client.epochs=5, not 1:"
        f" use the options of that run, or set --ckpt_path {newest.checkpoint}"
    )


def test_each_of_two_runs_that_differ_in_an_option_is_resumed_by_its_own_command(run, tmp_path):
    plain = ["fit", "--config", "run.yaml"]
    proximal = [*plain, "--server.aggregator", "FedProx", "--server.aggregator.mu", 0.1]
    run(*plain)
    run(*proximal)
    for number, arguments in enumerate((plain, proximal)):
        code, out, err = run(*arguments, "--ckpt_path", "last", "--trainer.max_epochs", 3)
        assert code == 0, err
        assert f"runs/run/version_{number}/checkpoints/last.ckpt" in out
    code, _, err = run(*plain, "--server.aggregator", "FedBN", "--ckpt_path", "last")
    assert code == 2
    assert "version_1 was run with server.aggregator.class_path=fl_lightning.aggregation.FedProx, not" in err


def test_evaluation_finds_the_run_by_the_options_it_was_trained_with(run, caplog):
    run("fit", "--config", "run.yaml", "--client.epochs", 1)
    run("fit", "--config", "run.yaml", "--client.epochs", 3)
    code, _, err = run("validate", "--config", "run.yaml", "--client.epochs", 1, "--ckpt_path", "last")
    assert code == 0, err
    assert "Loaded model weights from the checkpoint at runs/run/version_0/" in caplog.text
