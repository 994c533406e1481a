"""Checkpoints of rounds: what is kept, what is refused, and who may write them."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from fl_lightning.callbacks.run.checkpoint import LastRound
from fl_lightning.callbacks.run.saved_types import SavedServer, SavedTrainer
from fl_lightning.core.errors import MisconfigurationError, StorageError
from fl_lightning.core.plain_types import find_mismatch
from fl_lightning.core.run_folder import RunFolder
from tests.core.test_run_lock import HOLDER
from tests.toys import federate, identical


def run(folder, rounds=3, ckpt_path=None, callbacks=(), **flags):
    settings = {"enable_checkpointing": True, "default_root_dir": str(folder)} | flags
    return federate(rounds=rounds, ckpt_path=ckpt_path, callbacks=[LastRound(), *callbacks], **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds, which tests copy."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("finished")
    run(folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return RunFolder(shutil.copytree(finished, tmp_path / "run"))


def epoch_of(path):
    return torch.load(path, weights_only=True)["epoch"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[content.index(b"callbacks") + 2] ^= 4
    path.write_bytes(content)


def change(path, edit):
    content = torch.load(path, weights_only=True)
    edit(content)
    torch.save(content, path)


def test_the_last_two_rounds_are_kept_and_nothing_else(folder):
    assert {file.name for file in folder.checkpoint.parent.iterdir()} == {"last.ckpt", "previous.ckpt"}
    assert (epoch_of(folder.checkpoint), epoch_of(folder.previous_checkpoint)) == (2, 1)


def test_a_run_that_is_resumed_from_the_previous_round_ends_like_one_that_was_not(folder, finished):
    flip(folder.checkpoint)
    run(folder.path, ckpt_path=str(folder.previous_checkpoint))
    last, expected = (torch.load(each.checkpoint, weights_only=True) for each in (folder, RunFolder(finished)))
    assert identical(last["state_dict"], expected["state_dict"])


def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_previous_one(folder):
    flip(folder.checkpoint)

    before = folder.previous_checkpoint.read_bytes()
    run(folder.path, ckpt_path=str(folder.previous_checkpoint))
    assert folder.previous_checkpoint.read_bytes() == before
    assert epoch_of(folder.checkpoint) == 2
    run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))
    assert (epoch_of(folder.checkpoint), epoch_of(folder.previous_checkpoint)) == (3, 2)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip, r"is damaged: the checksum of data\.pkl is wrong"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: torch.save([1], path), "holds no model, so it is not a checkpoint"),
        (lambda path: change(path, lambda content: content.pop("loops")), "holds only a part of a run: it lacks loops"),
        (
            lambda path: change(path, lambda content: content["callbacks"].pop("FederatedServer")),
            "is not the checkpoint of a federation, because it holds no server",
        ),
        (
            lambda path: change(path, lambda content: content["callbacks"]["FederatedServer"].pop("store")),
            "holds only a part of the server's state: it lacks store",
        ),
        (
            lambda path: change(path, lambda content: content["state_dict"]["layers.0.bias"].fill_(torch.nan)),
            r"holds a model with a NaN in layers\.0\.bias",
        ),
    ],
    ids=["flipped", "empty", "foreign", "without loops", "without server", "without store", "NaN"],
)
def test_an_unusable_checkpoint_is_refused_with_the_previous_round(folder, damage, problem):
    damage(folder.checkpoint)
    way_out = f"use the one after round 2, --ckpt_path {folder.previous_checkpoint}"
    with pytest.raises(MisconfigurationError, match=f"^ckpt_path={folder.checkpoint} {problem}: {way_out}$"):
        run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))


def test_if_no_checkpoint_is_good_the_message_says_so(folder):
    for path in (folder.checkpoint, folder.previous_checkpoint):
        flip(path)
    with pytest.raises(MisconfigurationError, match=r"there is no good one in its folder, so start the run again$"):
        run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))


def test_the_checkpoints_of_other_callbacks_are_verified_too(tmp_path):
    own = ModelCheckpoint(tmp_path / "own", filename="best-{epoch}")
    federated, trainer = run(tmp_path, rounds=2, callbacks=[own])
    flip(next((tmp_path / "own").iterdir()))
    for evaluate in (trainer.validate, trainer.test, trainer.predict):
        with pytest.raises(MisconfigurationError, match=r"is damaged: .* there is no good one in its folder$"):
            evaluate(federated, trainer.datamodule, ckpt_path=own.best_model_path)


def test_an_evaluation_needs_only_the_weights(folder):
    change(folder.checkpoint, lambda content: content.pop("callbacks"))
    federated, trainer = federate(rounds=1)
    trainer.validate(federated, trainer.datamodule, ckpt_path=str(folder.checkpoint), verbose=False)


def test_a_checkpoint_io_that_the_user_chose_stays(tmp_path):
    class Mine(TorchCheckpointIO):
        pass

    _, trainer = run(tmp_path, rounds=2, plugins=[Mine()])
    assert type(trainer.strategy.checkpoint_io) is Mine
    assert epoch_of(RunFolder(tmp_path).checkpoint) == 1


def test_a_file_system_without_links_keeps_a_copy(tmp_path, monkeypatch):
    def fail(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    run(tmp_path, rounds=2)
    assert (epoch_of(RunFolder(tmp_path).checkpoint), epoch_of(RunFolder(tmp_path).previous_checkpoint)) == (1, 0)


def test_what_a_killed_process_did_not_complete_is_removed(folder):
    stale = folder.checkpoint.with_name("last.ckpt.part")
    stale.touch()
    run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))
    assert not stale.exists()


def test_a_run_that_another_process_writes_to_is_refused(folder):
    command = [sys.executable, "-S", "-c", HOLDER, folder.lock, ""]
    folder.lock.write_text("")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with pytest.raises(MisconfigurationError, match=f"^{folder} is in use by process {process.pid}: wait until"):
            run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))
        process.kill()
    run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))


def try_lock(last):
    """Try to lock the folder in another process, and return its exit code."""
    command = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-S", "-c", command, last.folder.lock], stderr=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("fails", [False, True])
def test_the_folder_is_locked_from_setup_to_the_end_of_the_fit(tmp_path, fails):
    last = LastRound()
    seen = []

    class Watch(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            seen.append(try_lock(last))
            if fails:
                raise ZeroDivisionError

    try:
        federate(rounds=1, callbacks=[last, Watch()], enable_checkpointing=True, default_root_dir=str(tmp_path))
    except ZeroDivisionError:
        assert fails
    assert seen == [1]
    assert try_lock(last) == 0


def test_a_folder_that_vanishes_stops_the_run_and_the_last_round_is_kept(tmp_path):
    class Remove(Callback):
        def on_validation_end(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(StorageError, match="run was removed while the run was writing to it: the model after round 2"):
        run(tmp_path / "run", callbacks=[Remove()], num_sanity_val_steps=0)
    assert epoch_of(RunFolder(tmp_path / "run").checkpoint) == 1


def test_a_full_disk_stops_the_run_and_the_last_round_is_kept(tmp_path, monkeypatch):
    class Full(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:

                def fail(content, file):
                    raise OSError(28, "No space left on device")

                monkeypatch.setattr("fl_lightning.core.saved_file.torch.save", fail)

    with pytest.raises(StorageError, match="No space left on device"):
        run(tmp_path, callbacks=[Full()])
    assert epoch_of(RunFolder(tmp_path).checkpoint) == 1


def test_the_types_that_are_required_are_those_that_a_run_saves(folder):
    content = torch.load(folder.checkpoint, weights_only=True)
    saved = content["callbacks"]["FederatedServer"]
    assert find_mismatch(content, SavedTrainer) is None
    assert find_mismatch(saved, SavedServer) is None
    assert SavedServer.__annotations__.keys() == saved.keys()


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda server: server["bytes"].update(up="many"), r"\.bytes\.up is a str, not an int"),
        (lambda server: server.update(clients_state=[]), r"\.clients_state is a list, not a dict or None"),
        (lambda server: server["downloads"]["moved"].append(3), r"\.downloads\.moved\.0 is an int, not a str"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_the_previous_round(folder, edit, problem):
    change(folder.checkpoint, lambda content: edit(content["callbacks"]["FederatedServer"]))
    problem = rf"holds a value that no run has saved: callbacks\.FederatedServer{problem}"
    way_out = f"use the one after round 2, --ckpt_path {folder.previous_checkpoint}"
    with pytest.raises(MisconfigurationError, match=f"^ckpt_path={folder.checkpoint} {problem}: {way_out}$"):
        run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))


def test_an_error_while_an_optimiser_is_restored_names_what_and_the_previous_round(folder):
    change(folder.checkpoint, lambda content: content["optimizer_states"][0]["param_groups"].append({"params": []}))
    message = f"^ckpt_path={folder.checkpoint} does not fit this run: the server's optimiser cannot be restored, Value"
    with pytest.raises(MisconfigurationError, match=message) as error:
        run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint))
    assert str(error.value).endswith(f": use the one after round 2, --ckpt_path {folder.previous_checkpoint}")


def test_an_error_in_a_users_callback_keeps_its_traceback(folder):
    class Mine(Callback):
        def load_state_dict(self, state_dict):
            raise KeyError("mine")

    change(folder.checkpoint, lambda content: content["callbacks"].update({"Mine": {"some": 1}}))
    Mine.state_key = "Mine"
    with pytest.raises(KeyError, match="mine"):
        run(folder.path, rounds=4, ckpt_path=str(folder.checkpoint), callbacks=[Mine()])


@pytest.mark.parametrize("progress", ["current", "total"])
def test_a_checkpoint_that_does_not_say_how_many_rounds_it_has_seen_is_refused(tmp_path, progress):
    run(tmp_path, 2)
    path = tmp_path / "checkpoints" / "last.ckpt"
    content = torch.load(path, weights_only=True)
    content["loops"]["fit_loop"]["epoch_progress"][progress] = {}
    torch.save(content, path)
    with pytest.raises(MisconfigurationError, match=rf"loops\.fit_loop\.epoch_progress\.{progress} lacks ready"):
        run(tmp_path, 3, ckpt_path=path)
