import errno
import os
import shutil
import signal
import subprocess
import sys

import pytest

from fl_lightning.core import run_lock
from fl_lightning.core.errors import MisconfigurationError, StorageError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.core.run_lock import RunLock

# It does not import the package, whose core imports torch.
HOLDER = """
import fcntl, os, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.write(f"{os.getpid()} " + sys.argv[2])
file.flush()
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "version_0")


@pytest.fixture
def held(folder):
    """Let another process lock the folder; return a function that starts it."""
    processes = []

    def hold(host=""):
        folder.path.mkdir()
        command = [sys.executable, "-S", "-c", HOLDER, folder.lock, host]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        processes[0].stdout.readline()
        return processes[0]

    yield hold
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_folder_that_another_process_uses_is_refused_with_its_number(folder, held):
    process = held()
    with pytest.raises(MisconfigurationError) as error:
        RunLock(folder)
    assert str(error.value) == (f"{folder} is in use by process {process.pid}: wait until it has ended, or stop it")


def test_a_process_of_another_machine_is_named_with_the_machine(folder, held):
    process = held(host="elsewhere")
    with pytest.raises(MisconfigurationError, match=f"is in use by process {process.pid} on elsewhere:"):
        RunLock(folder)


def test_a_killed_process_leaves_no_lock(folder, held):
    process = held()
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock = RunLock(folder)
    assert folder.lock.read_text().startswith(f"{os.getpid()} ")
    lock.release()


def test_a_released_folder_can_be_locked_again(folder):
    RunLock(folder).release()
    RunLock(folder).release()


def test_a_file_system_without_locks_causes_a_warning(folder, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_lock.fcntl, "lockf", fail)
    with pytest.warns(UserWarning, match=r"cannot be locked \(No locks available\): make sure that no other process"):
        RunLock(folder).release()


def test_a_folder_that_was_removed_or_replaced_is_noticed(folder):
    lock = RunLock(folder)
    assert not lock.lost
    shutil.rmtree(folder.path)
    assert lock.lost
    RunLock(folder).release()
    assert lock.lost
    lock.release()


def test_a_folder_that_cannot_be_created_is_an_error_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/version_0 cannot be written to: Not a directory"):
        RunLock(RunFolder(tmp_path / "file" / "version_0"))
