"""Ctrl-C and SIGTERM at any moment, and processes that die with the one that started them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fl_lightning.cli.signals import (
    EXIT_CODES,
    Terminated,
    are_installed,
    describe,
    end_at_once,
    exit_code,
    raise_interrupts,
)
from tests.runs import REPOSITORY

CODES = [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")]


@pytest.fixture
def handlers():
    """Restore the handlers of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code", "word"), CODES)
def test_a_signal_raises_an_interrupt_that_knows_its_exit_code(handlers, number, code, word):
    assert not are_installed()
    raise_interrupts()
    assert are_installed()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        os.kill(os.getpid(), number)
    assert isinstance(interrupt.value, Terminated) == (number == signal.SIGTERM)
    assert exit_code(interrupt.value) == code
    assert describe(interrupt.value) == word


def test_a_job_in_the_background_goes_on_ignoring_ctrl_c(handlers):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_at_once()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_the_command_imports_little_before_it_handles_signals():
    code = "import sys, fl_lightning.cli.main; print({'yaml', 'fl_lightning.cli.dispatch'} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert result.stdout == "set()\n", result.stderr


def started(code, *arguments, **environment):
    """Start Python code in a process that heeds Ctrl-C, and wait until it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{code}"]
        + [str(argument) for argument in arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
    )
    process.stdout.readline()
    return process


# The command waits in the import of its module, as it would in that of Lightning.
STARTING = """
import sys, time
from fl_lightning.cli import main, compare
class Slow:
    def find_spec(self, name, *_):
        if name == "fl_lightning.cli.report":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
sys.argv = ["fl-lightning", "report", "runs"]
main.main()
"""
# The command works, in its own code.
WORKING = """
import sys, time, types
from fl_lightning.cli import main
def work(arguments):
    print("working", flush=True)
    time.sleep(60)
sys.modules["fl_lightning.cli.report"] = types.SimpleNamespace(main=work)
sys.argv = ["fl-lightning", "report", "runs"]
main.main()
"""
# The command has ended, and Python is shutting down.
ENDING = """
import atexit, sys, time
from fl_lightning.cli import main
def slow():
    print("ending", flush=True)
    time.sleep(60)
atexit.register(slow)
sys.argv = ["fl-lightning", "--version"]
main.main()
sys.stdout.flush()
"""


@pytest.mark.parametrize(("number", "code", "word"), CODES)
@pytest.mark.parametrize("program", [STARTING, WORKING, ENDING], ids=["starting", "working", "ending"])
def test_a_signal_at_any_time_ends_the_command_with_one_line(program, number, code, word):
    process = started(program)
    if program is ENDING:
        process.stdout.readline()  # after that of the version
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, f"{word}.\n")


def test_another_rank_ends_without_a_word():
    process = started(WORKING, LOCAL_RANK="1")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


COMPARE = """
import os, subprocess, sys, time
from fl_lightning.core.child_process import environment_of_child
child = "import os, sys, time; from fl_lightning.core.child_process import follow_parent; follow_parent(); " \
    "assert 'FL_LIGHTNING_PARENT' not in os.environ; print('ready', flush=True); time.sleep(60)"
process = subprocess.Popen([sys.executable, "-c", child], env=environment_of_child(), start_new_session=True, stdout=1)
open(sys.argv[1], "w").write(str(process.pid))
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_run_dies_with_the_comparison_that_started_it_even_if_that_is_killed(tmp_path):
    process = started(COMPARE, tmp_path / "pid")
    child = int((tmp_path / "pid").read_text())
    assert is_running(child)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(number):
    try:
        return ") Z " not in Path(f"/proc/{number}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_run_whose_comparison_has_already_died_does_not_start():
    code = "from fl_lightning.core.child_process import follow_parent; follow_parent()"
    environment = {**os.environ, "FL_LIGHTNING_PARENT": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, cwd=REPOSITORY)
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("code", EXIT_CODES)
def test_after_an_interrupt_exit_functions_run_but_modules_are_not_taken_apart(code):
    program = f"""
import atexit, os, sys
from fl_lightning.cli import dispatch, main
class Late:
    def __del__(self):
        print("torn down", flush=True)
dispatch.late = Late()
atexit.register(print, "exit function")
dispatch.run_command = lambda args: sys.exit({code})
main.main()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY)
    assert (result.returncode, result.stdout) == (code, "exit function\n"), result.stderr
