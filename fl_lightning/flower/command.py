"""The command ``fl-lightning flower``."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.cli.commands import COMMANDS
from fl_lightning.cli.named_classes import import_named_classes
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.federation import FederationSettings
from fl_lightning.flower.app_folder import write_app
from fl_lightning.flower.local import check_installed, run_locally

_EPILOG = """\
All other options are the same as for fl-lightning fit: configs, overlays and settings.

  fl-lightning flower --config run.yaml --output app/   # write the app; app/README.md says what to do next
  fl-lightning flower --config run.yaml --local 3       # a SuperLink, three nodes and the run, on this machine"""


def main(args: Sequence[str]) -> None:
    """Write a Flower app, or run it with all its nodes on this machine."""
    parser = argparse.ArgumentParser(
        prog="fl-lightning flower",
        usage="fl-lightning flower --config FILE [--config FILE ...] (--output FOLDER | --local N) [options]",
        description=COMMANDS["flower"],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="folder for the app, which must be empty or not exist yet"
    )
    parser.add_argument(
        "--local", type=int, metavar="N", help="run everything here, with N nodes that share the simulated partition"
    )
    chosen, options = parser.parse_known_args(args)
    if (chosen.output is None) == (chosen.local is None):
        raise MisconfigurationError("set --output to a folder for the app, or --local to a number of nodes")
    if chosen.local is not None:
        if chosen.local < 1:
            raise MisconfigurationError(f"local={chosen.local}: set --local to 1 or more nodes")
        check_installed()
    name, config, num_clients = _resolve(options)
    if chosen.output is not None:
        write_app(chosen.output, name, config, num_clients)
        print(f"Wrote {chosen.output}: see {chosen.output / 'README.md'} for how to start the server and the nodes.")
        return
    if num_clients is not None and chosen.local > num_clients:
        raise MisconfigurationError(
            f"local={chosen.local}, but there are {num_clients} clients: set --local to {num_clients} or fewer"
        )
    with tempfile.TemporaryDirectory(prefix="fl_lightning_app_") as folder:
        write_app(Path(folder) / "app", name, config, num_clients)
        code = run_locally(Path(folder) / "app", chosen.local)
    if code:
        sys.exit(code)


def _resolve(options: list[str]) -> tuple[str, str, int | None]:
    """Return the name of the run, its complete config as YAML, and the number of clients, if it is known."""
    import_named_classes(options)
    from fl_lightning._lightning.cli import ParseOnly
    from fl_lightning.cli.app import FederatedCLI

    class ParsedFit(ParseOnly, FederatedCLI):
        pass

    parsed = ParsedFit(["fit", *options])
    config = parsed.dump()
    partition = (config["data"].get("partition") or {}).get("init_args") or {}
    settings = FederationSettings(**config["federation"])
    num_clients = settings.num_clients or partition.get("num_clients")
    return parsed.run_name, parsed.dump_text(), num_clients
