"""Parses many command lines of ``fl-lightning fit`` without running them; ``compare`` starts it as a process."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.cli.named_classes import import_named_classes
from fl_lightning.core.child_process import follow_parent
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.parsing import Parsed, write_answer
from fl_lightning.experiments.settings import flatten


def parse_all(command_lines: Sequence[Sequence[str]]) -> list[Parsed]:
    """Complete and check the configurations of several runs. No class is instantiated."""
    from fl_lightning._lightning.cli import ParseOnly
    from fl_lightning.cli.app import FederatedCLI

    class ParsedFit(ParseOnly, FederatedCLI):
        pass

    answers = []
    for arguments in command_lines:
        try:
            parsed = ParsedFit(["fit", *arguments])
        except MisconfigurationError as error:
            answers.append(Parsed(error=str(error)))
        else:
            set_keys = tuple(flatten(parsed.dump(skip_default=True)))
            answers.append(Parsed(config=parsed.dump_text(), set_keys=set_keys))
    return answers


def main(question: str, answer: str) -> None:
    """Read command lines from one file and write what the parser says about them to another."""
    follow_parent()
    command_lines = json.loads(Path(question).read_text())
    import_named_classes([argument for arguments in command_lines for argument in arguments])
    write_answer(parse_all(command_lines), Path(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
