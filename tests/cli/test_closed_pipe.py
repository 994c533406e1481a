"""A command whose output is not read to the end, as in ``fl-lightning --help | head -3``."""

import os
import subprocess
import sys

import pytest

from tests.runs import REPOSITORY, write_config

#: runs a command whose module is replaced with a function, ``work``
STAND_IN = """
import os, sys, types
from fl_lightning.cli import main
def work(arguments):
    {work}
sys.modules["fl_lightning.cli.report"] = types.SimpleNamespace(main=work)
sys.argv = ["fl-lightning", "report", "runs"]
main.main()
"""


def ended(*command: object, errors_too: bool = False) -> tuple[int, str]:
    """Run a program whose output nobody reads; return the exit code and the error messages."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = subprocess.run(
            [sys.executable, *map(str, command)],
            stdout=writer,
            stderr=writer if errors_too else subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
    finally:
        os.close(writer)
    return process.returncode, process.stderr or ""


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["report", "--help"], ["compare", "--help"]])
def test_a_command_ends_quietly_if_its_output_is_not_read(arguments):
    assert ended("-m", "fl_lightning.cli", *arguments) == (141, "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["fit", "partition"])
def test_a_command_that_uses_lightning_ends_quietly_if_its_output_is_not_read(command, tmp_path):
    trainer = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": True}
    config = write_config(tmp_path / "run.yaml", trainer=trainer)
    code, errors = ended("-m", "fl_lightning.cli", command, "--config", config)
    assert code == 141
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


@pytest.mark.parametrize("work", ["print('x' * 10**6)", "print(1)", "print(1, flush=True)", "print(1); sys.exit()"])
def test_nothing_is_said_whenever_the_output_is_written(work):
    assert ended("-c", STAND_IN.format(work=work)) == (141, "")


@pytest.mark.parametrize("code", [1, 2, 130, 143])
def test_a_command_that_failed_keeps_its_exit_code(code):
    assert ended("-c", STAND_IN.format(work=f"print(1); sys.exit({code})")) == (code, "")


def test_an_error_message_that_nobody_reads_ends_the_command_quietly():
    code, _ = ended("-m", "fl_lightning.cli", "report", "nowhere", errors_too=True)
    assert code in (2, 141)


def test_another_pipe_that_breaks_is_an_error_like_any_other():
    work = "ends = os.pipe(); os.close(ends[0]); os.write(ends[1], b'x')"
    program = STAND_IN.format(work=work)
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY)
    assert process.returncode == 1
    assert process.stderr.endswith("BrokenPipeError: [Errno 32] Broken pipe\n")
