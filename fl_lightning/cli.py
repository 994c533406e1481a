"""The ``fl-lightning`` command: which of its commands to run, and how it ends."""

import importlib
import logging
import os
import re
import sys
import warnings

#: commands with a ``main`` of their own in the module of that name; they start without Lightning
OTHER_COMMANDS = {
    "compare": "Runs a suite of configurations over seeds and prints a table of what they reach.",
    "report": "Writes a page of figures and tables about runs.",
}


def main(args: list[str] | None = None) -> None:
    """The console script. A user's mistake gets one line; exit codes: 2 a mistake, 130 Ctrl-C, 143 SIGTERM."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # console scripts do not see the user's own modules otherwise
    command, *arguments = (sys.argv[1:] if args is None else args) or [""]
    try:
        if command in OTHER_COMMANDS:
            importlib.import_module(f"fl_lightning.{command}").main(arguments)
        else:
            _run_federation(args)
    except Exception as error:
        mistake = _mistake_behind(error)
        if mistake is None:
            raise
        from fl_lightning.complaints import explain

        print(f"error: {explain(str(mistake))}", file=sys.stderr)
        sys.exit(2)


def _run_federation(args: list[str] | None) -> None:
    from pytorch_lightning.utilities.exceptions import SIGTERMException

    from fl_lightning.commands import FederatedCLI

    _keep_quiet()
    try:
        FederatedCLI(args, OTHER_COMMANDS)
    except SIGTERMException:
        _say_how_to_resume("Terminated")
        sys.exit(143)
    except SystemExit as exit:
        if isinstance(exit.__context__, KeyboardInterrupt):
            _say_how_to_resume("Interrupted")
            sys.exit(130)
        raise


def _say_how_to_resume(what: str) -> None:
    print(f"{what}. The rounds that ended are kept: the same command with --ckpt_path last goes on.", file=sys.stderr)


def _mistake_behind(error: BaseException | None) -> BaseException | None:
    """A user's mistake may come wrapped by the parser."""
    from pytorch_lightning.utilities.exceptions import MisconfigurationException

    while error is not None and not isinstance(error, MisconfigurationException):
        error = error.__cause__
    return error


def _keep_quiet() -> None:
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.* is deprecated")
    warnings.filterwarnings("ignore", ".*does not have many workers")
    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
    warnings.filterwarnings("ignore", r".*add the following callbacks: \['LastRound'\]")
    rank_zero = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    rank_zero.addFilter(lambda record: not re.match("💡 Tip|TPU available|`Trainer.fit` stopped", record.getMessage()))
    logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.WARNING)


if __name__ == "__main__":
    main()
