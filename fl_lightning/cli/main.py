"""The entry point of ``fl-lightning``. It imports little, so that signals are handled from the start."""

import sys
from contextlib import nullcontext

from fl_lightning.cli.closed_pipe import end_if_closed
from fl_lightning.cli.signals import EXIT_CODES, describe, end_at_once, end_without_teardown, exit_code


def main(args: list[str] | None = None) -> None:
    """Run the command line.

    A user's mistake and a client's failure are printed in one line. The exit code is 2 after a mistake, 1 after a
    failure, 130 after Ctrl-C, 143 after SIGTERM, and 141 if the reader of the output has closed the pipe.

    Args:
        args: the arguments; by default, the ones that the process was started with.
    """
    with end_if_closed() if args is None else nullcontext():
        _run(args)


def _run(args: list[str] | None) -> None:
    if args is None:  # the process belongs to the command
        end_at_once()
    from fl_lightning.cli.dispatch import run_command
    from fl_lightning.core.child_process import follow_parent

    if args is None:
        follow_parent()
    try:
        try:
            run_command(args)
        except KeyboardInterrupt as interrupt:
            print(f"{describe(interrupt)}.", file=sys.stderr)
            sys.exit(exit_code(interrupt))
        finally:
            if args is None:
                end_at_once()
    except SystemExit as exit:
        if args is None and exit.code in EXIT_CODES:
            end_without_teardown(exit.code)
        raise
