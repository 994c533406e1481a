"""Ctrl-C and SIGTERM: one line and the right exit code, from the first import of the command to its last line."""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

_WORDS = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}

#: exit codes of commands that were interrupted
EXIT_CODES = tuple(128 + number for number in _WORDS)


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM. Code that cleans up after Ctrl-C, such as Lightning's, does the same after SIGTERM."""


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a command that was interrupted."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


def describe(interrupt: KeyboardInterrupt) -> str:
    """Return the word that tells the user how a command was interrupted."""
    return _WORDS[signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT]


def end_without_teardown(code: int) -> NoReturn:
    """End the process after an interrupt. Python would first take apart all modules, which takes seconds with torch."""
    atexit._run_exitfuncs()  # they end the workers of data loaders
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):  # nobody reads it
            stream.flush()
    os._exit(code)


def end_at_once() -> None:
    """Let a signal end the process at once, with one line: there is nothing to clean up while a command starts or ends.

    An exception would not work here, because many libraries turn one that occurs in an import into another error.
    """
    _install(_end)


def raise_interrupts() -> None:
    """Let a signal raise ``KeyboardInterrupt`` or :class:`Terminated`, so that the command can clean up."""
    _install(_end if _is_other_rank() else _raise)


def are_installed() -> bool:
    """Return whether the command handles the signals of this process, and not a program that calls it."""
    return signal.getsignal(signal.SIGTERM) in (_raise, _end)


def _install(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in _WORDS:
        # A shell starts background jobs with Ctrl-C ignored, and they should continue to ignore it.
        if signal.getsignal(number) is not signal.SIG_IGN or number is signal.SIGTERM:
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> NoReturn:
    if _is_other_rank():
        os._exit(0)  # rank zero explains it; any other code would make Lightning kill rank zero
    os.write(2, f"{_WORDS[signal.Signals(number)]}.\n".encode())
    os._exit(128 + number)


def _is_other_rank() -> bool:
    """Return whether Lightning started this process beside rank zero, which is the user's command."""
    return os.environ.get("LOCAL_RANK", "0") != "0"
