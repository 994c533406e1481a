"""Choosing and running a command: mistakes are printed in one line and set the exit code."""

import importlib
import os
import sys
import threading

from fl_lightning import __version__
from fl_lightning.cli.commands import COMMANDS, RESUME, STANDALONE_COMMANDS
from fl_lightning.cli.errors import shorten_parser_error
from fl_lightning.cli.failures import find_mistake
from fl_lightning.cli.named_classes import import_named_classes
from fl_lightning.cli.signals import describe, exit_code, raise_interrupts
from fl_lightning.core.errors import MisconfigurationError, RoundFailedError, StorageError, find_disk_error
from fl_lightning.core.memory import reuse_freed_memory


def run_command(args: list[str] | None) -> None:
    """Run the command that the arguments name; see :func:`fl_lightning.cli.main.main`."""
    command, *arguments = (sys.argv[1:] if args is None else args) or ["--help"]
    try:
        if command in ("-h", "--help"):
            print(_help())
        elif command == "--version":
            print(f"fl-lightning {__version__}")
        elif command in STANDALONE_COMMANDS:
            module = importlib.import_module(STANDALONE_COMMANDS[command])
            if args is None:
                raise_interrupts()
            module.main(arguments)
        elif command in COMMANDS or command.startswith("-"):
            _run_federated_cli(args)
        else:
            raise MisconfigurationError(f"{command} is not a command: use {', '.join(COMMANDS)}")
    except StorageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        mistake = find_mistake(error)
        if mistake is None:
            raise
        print(f"error: {shorten_parser_error(str(mistake))}", file=sys.stderr)
        sys.exit(2)


def _help() -> str:
    commands = "\n".join(f"  {name:<11}{description}" for name, description in COMMANDS.items())
    return f"""\
usage: fl-lightning COMMAND [options]

Federated learning on PyTorch Lightning.

commands:
{commands}

fl-lightning COMMAND --help shows the options of a command. fl-lightning --version shows the version."""


def _run_federated_cli(args: list[str] | None) -> None:
    if args is None:  # the process belongs to the command
        reuse_freed_memory()
    import_named_classes(sys.argv[1:] if args is None else args)
    from fl_lightning._lightning.names import SIGTERMException, rank_zero_only
    from fl_lightning._lightning.quiet import silence_irrelevant_messages
    from fl_lightning._lightning.ranks import DeadRankError, explain_dead_ranks
    from fl_lightning.cli.app import FederatedCLI

    silence_irrelevant_messages()
    if args is None:
        explain_dead_ranks(RESUME)
        threading.excepthook = _report_thread
        raise_interrupts()
    try:
        FederatedCLI(args)
    except RoundFailedError as error:  # every rank raises it, and rank zero prints it
        rank_zero_only(print)(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except SIGTERMException:  # Lightning raises it on a cluster whose jobs are requeued
        print(f"Terminated. {RESUME}", file=sys.stderr)
        sys.exit(143)
    except DeadRankError as error:
        print(f"error: {error}. {RESUME}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as exit:
        if isinstance(exit.__context__, KeyboardInterrupt):
            print(f"{describe(exit.__context__)}. {RESUME}", file=sys.stderr)
            sys.exit(exit_code(exit.__context__))
        raise


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """Print the traceback of a thread, unless the disk failed: the main thread soon reports that in one line."""
    error = failure.exc_value
    lost_events = isinstance(error, FileNotFoundError) and "events.out.tfevents" in os.fsdecode(error.filename or "")
    if find_disk_error(error) is None and not lost_events:
        threading.__excepthook__(failure)
