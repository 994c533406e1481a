"""Damaged checkpoints, full disks and changed conditions, as the command reports them."""

import errno
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from fl_lightning.cli.app import FederatedCLI
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.core.run_lock import RunLock
from tests.core.test_saved_file import Malicious
from tests.toys import Blobs


@pytest.fixture
def finished(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Blobs, "predict_dataloader", Blobs.val_dataloader, raising=False)
    code, _, err = run("fit", "--config", "run.yaml")
    assert code == 0, err
    return RunFolder(Path("runs/run/version_0"))


def test_a_damaged_checkpoint_is_refused_by_every_command_before_the_data_is_read(run, finished, monkeypatch):
    def read(self, stage):
        raise AssertionError("the data was read")

    monkeypatch.setattr(Blobs, "setup", read)
    last, proof = finished.checkpoint, Path("executed").resolve()

    def check(command, given, shown, problem):
        code, _, err = run(command, "--config", "run.yaml", "--ckpt_path", given)
        fix = f"use the one after round 1, --ckpt_path {shown.with_name(finished.previous_checkpoint.name)}"
        assert (code, err) == (2, f"error: ckpt_path={shown} {problem}: {fix}\n")

    content = bytearray(last.read_bytes())
    content[content.index(b"callbacks") + 1] ^= 16
    last.write_bytes(content)
    for command in ("fit", "validate", "test", "predict"):
        check(command, "last", last, "is damaged: the checksum of data.pkl is wrong")
    torch.save({"state_dict": Malicious(proof)}, last)
    check("fit", last.resolve(), last.resolve(), "holds objects (posix.mkdir) that could run code, so it is not loaded")
    assert not proof.exists()


def test_the_round_that_is_named_can_be_continued(run, finished):
    expected = torch.load(finished.checkpoint, weights_only=True)["state_dict"]
    finished.checkpoint.write_bytes(b"")
    code, out, err = run("fit", "--config", "run.yaml", "--ckpt_path", finished.previous_checkpoint)
    assert code == 0, err
    assert "resumed at round 2" in out
    again = torch.load(finished.checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(again[name], value) for name, value in expected.items())


def test_a_run_that_is_in_use_is_refused_before_the_data_is_read(run, finished, monkeypatch):
    def locked(*_):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    finished.lock.write_text("4711 ")
    monkeypatch.setattr("fl_lightning.core.run_lock.fcntl.lockf", locked)
    monkeypatch.setattr(Blobs, "setup", lambda *_: pytest.fail("the data was read"))
    code, _, err = run("fit", "--config", "run.yaml", "--ckpt_path", "last")
    folder = finished.path.resolve()
    assert (code, err) == (2, f"error: {folder} is in use by process 4711: wait until it has ended, or stop it\n")


def test_the_config_of_a_run_repeats_it_and_says_what_differs(run, finished):
    record = yaml.safe_load(finished.provenance.read_text())
    record["packages"]["torch"] = "1.0"
    finished.provenance.write_text(yaml.safe_dump(record))
    _, out, _ = run("fit", "--config", finished.config, "--seed_everything", 4)
    lines = [line for line in out.splitlines() if line.startswith("Differs from")]
    assert f"Differs from {finished.path.resolve()}: seed 3 -> 4: results will differ" in lines
    assert lines[-1].startswith(f"Differs from {finished.path.resolve()}: torch 1.0 -> ")


def test_a_full_disk_ends_the_run_with_one_line_and_the_last_round_is_kept(run, finished, monkeypatch):
    def full(content, file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fl_lightning.core.saved_file.torch.save", full)
    before = finished.checkpoint.read_bytes()
    code, _, err = run("fit", "--config", "run.yaml", "--ckpt_path", "last", "--trainer.max_epochs", 3)
    assert code == 1
    line = f"error: {finished.checkpoint.resolve()} could not be written: No space left on device. Finished rounds are"
    assert err.splitlines()[-1].startswith(line)
    assert "Traceback" not in err
    assert finished.checkpoint.read_bytes() == before


def test_a_full_disk_under_the_logs_ends_the_run_with_one_line(run, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    code, _, err = run("fit", "--config", "run.yaml")
    folder = tmp_path / "runs/run/version_0"
    line = f"error: {folder} could not be written to: No space left on device. No round is saved: make room there, or"
    assert (code, err.splitlines()[-1].startswith(line)) == (1, True), err


def test_a_folder_that_cannot_be_created_is_reported_in_one_line(run, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = run("fit", "--config", "run.yaml", "--trainer.default_root_dir", "file/runs")
    assert code == 2
    assert err.splitlines()[-1].startswith("error: ")
    assert "file/runs" in err


def test_two_commands_that_start_at_the_same_moment_get_separate_folders(run, tmp_path, monkeypatch):
    """The other command creates its folder after this one has looked for a free number."""
    create = FederatedCLI._create

    def other_is_faster(self, folder):
        if folder.name == "version_0":
            folder.mkdir(parents=True)
        return create(self, folder)

    monkeypatch.setattr(FederatedCLI, "_create", other_is_faster)
    code, out, err = run("fit", "--config", "run.yaml")
    assert code == 0, err
    assert "runs/run/version_1/checkpoints/last.ckpt" in out
    assert not any((tmp_path / "runs/run/version_0").iterdir())


def test_a_lock_is_no_obstacle_in_the_process_that_holds_it(tmp_path):
    first, second = RunLock(RunFolder(tmp_path)), RunLock(RunFolder(tmp_path))
    second.release()
    first.release()


def test_a_removed_folder_that_the_logs_notice_first_ends_the_run_with_one_line(run, tmp_path, monkeypatch):
    folder = tmp_path / "runs/run/version_0"

    def vanish(*_, **__):
        shutil.rmtree(folder, ignore_errors=True)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", bytes(folder / "events.out.tfevents.1"))

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", vanish)
    code, _, err = run("fit", "--config", "run.yaml")
    line = f"error: {folder} was removed while the run was writing to it. Its rounds are lost: run the command again."
    assert (code, err.splitlines()[-1], "Traceback" in err) == (1, line, False)
