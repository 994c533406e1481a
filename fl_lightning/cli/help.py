"""The help of a command: a line or two per option, instead of Lightning's complete documentation."""

import re
from argparse import SUPPRESS, Action

from jsonargparse import DefaultHelpFormatter

from fl_lightning._lightning.cli_names import LightningArgumentParser

_TITLES = {
    "model": "model (the LightningModule that the clients train)",
    "data": "data (which samples each client owns, and which clients take part in a round)",
    "client": "client (how a client trains; most options belong to its Trainer)",
    "server": "server (how the clients' updates become the next global model)",
    "federation": "federation (only for runs on several machines: fl-lightning flower)",
    "trainer": "trainer (the server's Trainer, whose epochs are rounds)",
}
_NOTES = """\
A class is given by its name, and its arguments follow a dot:
  --data.partition IID --data.partition.num_clients 10
To see what a class accepts:        --data.partition.help IID
To add an entry to a list:          --trainer.callbacks+ EarlyStopping
To print the whole config as YAML:  --print_config
All about the Trainer's options:    https://lightning.ai/docs/pytorch/stable/common/trainer.html"""
#: help of options that all commands share, where Lightning's own does not fit
_TEXTS = {
    "config": "a config in YAML; later ones override earlier ones",
    "print_config": "print the configuration and exit; =skip_default leaves out the defaults",
    "seed_everything": "seed of the run; true draws a random one",
    "float32_matmul_precision": "the argument of torch.set_float32_matmul_precision",
    "model": "its class",
    "ckpt_path": "a checkpoint, or last for the newest run with the same settings",
    "weights_only": "whether to refuse checkpoints with anything but tensors and plain values",
    "trainer.max_epochs": "the number of rounds",
}


def use_short_help(parser: LightningArgumentParser, command: str) -> None:
    """Set the usage, the titles and the notes of a command's help."""
    parser.usage = f"fl-lightning {command} --config FILE [--config FILE ...] [options]"
    parser.epilog = _NOTES
    for name, group in (parser.groups or {}).items():
        group.title = _TITLES.get(name, group.title)


class ShortHelpFormatter(DefaultHelpFormatter):
    """Prints the first sentence about each option, its default and the classes that it accepts."""

    def add_argument(self, action: Action) -> None:
        """Add an option, unless every section or class has one like it."""
        option = next(iter(action.option_strings), "")
        whole_section = action.dest in _TITLES and action.dest != "model"
        if option.startswith("-") and not option.endswith(".help") and not whole_section:
            super().add_argument(action)

    def start_section(self, heading: str | None) -> None:
        """Start a section. The section that Lightning names after the Trainer's method is about the checkpoint."""
        known = heading is None or heading == "options" or heading in _TITLES.values()
        super().start_section(heading if known else "checkpoint")

    def _format_action_invocation(self, action: Action) -> str:
        names = [name for name in action.option_strings if not name.endswith("+")]
        return ", ".join(names) + ("" if action.nargs == 0 else f" {_metavar(action)}")

    def _get_help_string(self, action: Action) -> str:
        text = _TEXTS.get(action.dest) or _first_sentence(action.help or "")
        details = ["required"] if action.required else []
        if action.default not in (None, SUPPRESS) and action.nargs != 0:
            details.append("default: %(default)s")
        names = _class_names(action)
        if names:
            details.append(f"such as {', '.join(names)}")
        return text + (f" ({'; '.join(details)})" if details else "")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def _first_sentence(text: str) -> str:
    """Return the first sentence, without the markup of docstrings and without a default, which is printed anyway."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text).replace("`", "")
    text = re.split(r"(?<=[a-z0-9)\"'])\.\s|\s*Default(?:s to)?:", text)[0].rstrip(". ")
    return text if re.match(r"Lightning|[A-Z]{2}", text) else text[:1].lower() + text[1:]


def _metavar(action: Action) -> str:
    if str(action.metavar).startswith("{"):
        return str(action.metavar)
    names = {"config": "FILE", "print_config": "[=flags]", "ckpt_path": "FILE", "output": "FILE"}
    return names.get(action.dest, "CLASS" if _class_names(action) else "VALUE")


def _class_names(action: Action) -> list[str]:
    """Return the short names of classes that an option accepts: this package's classes, loggers and optimisers."""
    if not hasattr(action, "extra_help"):
        return []
    paths = action.extra_help().partition("known subclasses: ")[2].split(", ")
    listed = r"(?:fl_lightning\.\w+|torch\.optim|.*lightning\.(?:pytorch\.)?loggers)\.(?!Optimizer)(\w+)"
    return sorted(match.group(1) for path in paths if (match := re.fullmatch(listed, path)))
