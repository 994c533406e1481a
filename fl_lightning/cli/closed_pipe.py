"""A command whose output nobody reads any more ends without a word, as in ``fl-lightning --help | head -3``."""

import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fl_lightning.cli.signals import end_without_teardown

#: what a shell reports for a process that SIGPIPE has ended
EXIT_CODE = 141


@contextmanager
def end_if_closed() -> Iterator[None]:
    """End the process with exit code 141 if its output cannot be written because the reader has closed the pipe.

    A command that has already failed keeps its own exit code, and ``fit --help`` ends with 0, because argparse ignores
    that its text cannot be written. Python ignores SIGPIPE, and this does not change that: the signal would also end
    the process when a connection to a worker or to another machine breaks.
    """
    try:
        try:
            yield
        except SystemExit as exit:
            if isinstance(exit.__context__, BrokenPipeError):  # Rich turns the error of its bar into exit code 1
                end_without_teardown(EXIT_CODE)
            if exit.code and _is_closed():
                end_without_teardown(exit.code if isinstance(exit.code, int) else 1)
            _flush()
            raise
        _flush()
    except BrokenPipeError:
        if not _is_closed():
            raise
        end_without_teardown(EXIT_CODE)


def _flush() -> None:
    """Write what is still buffered. Python would report an error itself if this failed only when it shuts down."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _is_closed() -> bool:
    """Return whether the reader of the output or of the error messages is gone."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
