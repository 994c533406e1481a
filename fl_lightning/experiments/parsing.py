"""Checking and completing the configurations of runs in a separate process, so that this one needs no Lightning."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fl_lightning.core.child_process import environment_of_child

#: the command that parses; it takes the file of the command lines and the file for the answers
PARSE = (sys.executable, "-m", "fl_lightning.cli.parse")


@dataclass(frozen=True)
class Parsed:
    """What the parser says about the arguments of one run.

    Args:
        config: the complete configuration as YAML, as in a run's ``config.yaml``; empty if there is an error.
        set_keys: keys that do not have their default value, as flat settings.
        error: what is wrong with the arguments; None if nothing is.
    """

    config: str = ""
    set_keys: tuple[str, ...] = ()
    error: str | None = None


def parse_in_child(command_lines: Sequence[Sequence[str]]) -> list[Parsed]:
    """Parse several lists of arguments of ``fl-lightning fit`` in one separate process."""
    count = len(command_lines)
    print(f"Checking {count} configuration{'s' if count > 1 else ''}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "question.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(command_lines))
        child = subprocess.run(
            [*PARSE, str(question), str(answer)],
            env=environment_of_child(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the other
        )
        if not answer.is_file():  # the child has printed why
            sys.exit(child.returncode)
        return [Parsed(**item) for item in json.loads(answer.read_text())]


def write_answer(parsed: Sequence[Parsed], file: Path) -> None:
    """Write what :func:`parse_in_child` reads."""
    file.write_text(json.dumps([asdict(item) for item in parsed]))
