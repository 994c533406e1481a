"""Runs mutated configs in this process, and tells how each of them ended."""

import io
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from tests.cli.mutations.base import Mutation

Outcome = Literal[
    "trained",
    "one line",
    "client failed",
    "one line after a round",
    "traceback",
    "traceback after a round",
    "hang",
    "wrongly accepted",
]
#: how a run may end
GOOD = ("trained", "one line", "client failed")
#: why the first round may fail: training diverges, or a client is too slow or has too few batches for the share of them
_REASONS_TO_FAIL = (
    *("is not finite", "would make", "took longer than client.timeout"),
    "Please increase the `limit_train_batches`",
)
#: seconds after which a run counts as a hang
_PATIENCE = 60


@contextmanager
def one_parser() -> Iterator[None]:
    """Let all calls of a command share one parser, because filling it takes longer than parsing most configs."""
    from fl_lightning.cli.app import FederatedCLI

    setup_parser = FederatedCLI.setup_parser
    shared: dict[str | None, dict[str, Any]] = {}

    def setup(cli: FederatedCLI, *args: Any) -> None:
        command = cli._requested
        if command not in shared:
            before = set(vars(cli))
            setup_parser(cli, *args)
            shared[command] = {name: value for name, value in vars(cli).items() if name not in before}
            shared[command]["_command_parsers"] = cli._command_parsers
        vars(cli).update(shared[command])

    FederatedCLI.setup_parser = setup  # type: ignore[method-assign]
    try:
        yield
    finally:
        del FederatedCLI.setup_parser


@cache
def fill_parser(command: str) -> None:
    """Fill the parser that the calls of a command share, so that forked processes need not do it."""
    from fl_lightning._lightning.cli import ParseOnly
    from fl_lightning.cli.app import FederatedCLI
    from fl_lightning.core.errors import MisconfigurationError

    class Parsed(ParseOnly, FederatedCLI):
        pass

    with suppress(MisconfigurationError):  # there is no model
        Parsed([command])


class _Hang(BaseException):
    pass


class _Enough(BaseException):
    """Raised when a config is known to be accepted: after two rounds, or when further processes would be started."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _Hang

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _counted_rounds() -> Iterator[list[int]]:
    """Stop a run with many rounds or several processes. Yield a list with an entry for each round that is complete."""
    from pytorch_lightning.strategies.launchers import _SubprocessScriptLauncher

    from fl_lightning.callbacks import FederatedServer

    rounds: list[int] = []
    run_round = FederatedServer.run_round

    def counted(*args: Any) -> None:
        if len(rounds) == 2:
            raise _Enough
        run_round(*args)
        rounds.append(len(rounds))

    # Lightning would start the tests themselves once more.
    launch = patch.object(_SubprocessScriptLauncher, "_call_children_scripts", side_effect=_Enough)
    with patch.object(FederatedServer, "run_round", counted), launch:
        yield rounds


def run(mutated: Mutation, folder: Path) -> tuple[Outcome, str]:
    """Run ``fit`` with a mutated config in an empty folder; return how it ended and the error."""
    from fl_lightning.cli.main import main

    (folder / "c.yaml").write_bytes(mutated.file())
    out, err = io.StringIO(), io.StringIO()
    with _working_in(folder), redirect_stdout(out), redirect_stderr(err), _counted_rounds() as rounds:
        try:
            with _limited(_PATIENCE):
                main(["fit", "--config", "c.yaml"])
            code = 0
        except SystemExit as exit:
            code = exit.code
        except _Enough:
            code = 0
        except _Hang:
            return "hang", ""
        except BaseException as error:
            return ("traceback after a round" if rounds else "traceback"), f"{type(error).__name__}: {error}"
    if (folder / "executed").exists():
        return "wrongly accepted", "the config executed a function"
    if code == 0:
        return ("wrongly accepted" if mutated.wrong else "trained"), ""
    lines = err.getvalue().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if code == 1 and len(errors) == 1 and any(reason in errors[0] for reason in _REASONS_TO_FAIL) and not mutated.wrong:
        return "client failed", errors[0]
    if code != 2 or len(errors) != 1 or lines[-1] != errors[0] or len(errors[0]) > 2000:
        return "traceback", f"exit code {code}: {err.getvalue()[-300:]}"
    return ("one line after a round" if rounds else "one line"), errors[0]
