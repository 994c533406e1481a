"""A LightningCLI with commands that are not methods of the Trainer, and with parsing that does not run anything.

This file uses four private names of ``LightningCLI``: ``_prepare_subcommand_parser``, ``_parse_ckpt_path``,
``_run_subcommand`` and ``_set_seed``. Each has a test in ``tests/lightning_contract/test_cli.py``.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from jsonargparse import Namespace

from fl_lightning._lightning.cli_names import ArgsType, LightningArgumentParser, LightningCLI


@dataclass(frozen=True)
class Command:
    """A command that is not a method of the Trainer.

    Args:
        description: one line for the help.
        configured_like: the Trainer's command whose configuration it accepts, for example ``"fit"``.
    """

    description: str
    configured_like: str


class CommandParser(LightningArgumentParser):
    """A parser to which more commands can be added after LightningCLI has added its own.

    It does not complete options: a mistyped one would otherwise set the option that begins like it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **({"allow_abbrev": False} | kwargs))

    def add_subcommands(self, *args: Any, **kwargs: Any) -> Any:
        """Add the group of commands, and remember it."""
        self._commands = super().add_subcommands(*args, **kwargs)
        return self._commands

    def add_command(self, name: str, parser: LightningArgumentParser) -> None:
        """Add one more command to the group."""
        self._commands.add_subcommand(name, parser, help=parser.description)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Return a configuration as text, without checking it: it was checked when it was parsed."""
        return super().dump(*args, **(kwargs | {"skip_validation": True}))

    @property
    def has_commands(self) -> bool:
        """Whether this is the parser of the program, not the parser of a command or of a class."""
        return hasattr(self, "_commands")

    def option_names(self) -> list[str]:
        """Return the names of all options, including those of the commands, such as ``client.epochs``."""
        commands = self._commands.choices.values() if self.has_commands else ()
        return [action.dest for parser in (self, *commands) for action in parser._actions]


class ExtensibleCLI(LightningCLI):
    """A LightningCLI with further commands besides the Trainer's.

    A command ``name`` is declared in :meth:`commands` and runs the method of that name, after the same stages that
    LightningCLI goes through for ``fit``: parsing, seeding, ``before_instantiate_classes``, ``instantiate_classes``,
    ``after_instantiate_classes``.

    It differs from LightningCLI in two more ways. Only the parser of the requested command is filled with arguments,
    because filling a parser takes a fifth of a second. The configuration always takes precedence over the
    hyper-parameters in the checkpoint that ``--ckpt_path`` names.

    Args:
        args: the command line; by default, the one that the process was started with.
        kwargs: the other arguments of ``LightningCLI``.
    """

    def __init__(self, *, args: ArgsType = None, **kwargs: Any) -> None:
        self._requested = next(iter(sys.argv[1:] if args is None else args), None)
        self._command_parsers: dict[str, LightningArgumentParser] = {}
        super().__init__(args=args, **({"parser_class": CommandParser} | kwargs))

    def commands(self) -> Mapping[str, Command]:
        """Return the commands that are not methods of the Trainer, by name."""
        return {}

    def add_arguments_to_command(self, command: str, parser: LightningArgumentParser) -> None:
        """Add the options that only one command has."""

    def setup_parser(
        self, add_subcommands: bool, main_kwargs: dict[str, Any], subparser_kwargs: dict[str, Any]
    ) -> None:
        """Set up the parser, first with the Trainer's commands, then with the others."""
        super().setup_parser(add_subcommands, main_kwargs, subparser_kwargs)
        for name, command in self.commands().items() if add_subcommands else ():
            parser = self._prepare_subcommand_parser(self.trainer_class, name, description=command.description)
            assert isinstance(self.parser, CommandParser)
            self.parser.add_command(name, parser)

    @property
    def command_parser(self) -> LightningArgumentParser:
        """The parser of the requested command."""
        return self._command_parsers[str(self.subcommand)]

    @property
    def command_config(self) -> Namespace:
        """The configuration of the requested command. It can be changed until the classes are instantiated."""
        return self.config[str(self.subcommand)]

    def dump(self, skip_default: bool = False) -> dict[str, Any]:
        """Return the configuration in the form of a run's ``config.yaml``.

        Args:
            skip_default: whether to leave out settings that equal their defaults.
        """
        return yaml.safe_load(self.dump_text(skip_default))

    def dump_text(self, skip_default: bool = False) -> str:
        """Return the configuration as the text of a run's ``config.yaml``."""
        return self.command_parser.dump(self.command_config, skip_none=False, skip_default=skip_default)

    def instantiate_section(self, section: str) -> Any:
        """Instantiate one section of the configuration, and nothing else."""
        config = Namespace({section: self.command_config[section]})
        return self.command_parser.instantiate_classes(config)[section]

    def _prepare_subcommand_parser(self, klass: Any, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        commands = self.commands()
        if self._requested != subcommand and self._requested in (*self.subcommands(), *commands):
            parser = self.init_parser(**kwargs)
        else:
            configured_like = commands[subcommand].configured_like if subcommand in commands else subcommand
            parser = super()._prepare_subcommand_parser(klass, configured_like, **kwargs)
            self.add_arguments_to_command(subcommand, parser)
        self._command_parsers[subcommand] = parser
        return parser

    def _parse_ckpt_path(self) -> None:
        """Leave the configuration unchanged: LightningCLI would overwrite it with the checkpoint's hyper-parameters."""

    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand in self.commands():
            getattr(self, subcommand)()
        else:
            super()._run_subcommand(subcommand)


class ParseOnly(ExtensibleCLI):
    """Mix-in for an :class:`ExtensibleCLI` that completes and checks the configuration without running anything.

    It must be the first base class, because it overrides all stages after parsing.

    Example::

        class ParsedCommand(ParseOnly, MyCLI):
            pass

        ParsedCommand(args=["fit", "--config", "demo.yaml"]).dump()
    """

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments, without LightningCLI's warning that the process also has a command line."""
        if isinstance(args, list):
            self.config = parser.parse_args(args)
        else:
            super().parse_arguments(parser, args)

    def _set_seed(self) -> None:
        """Do nothing, so that the random generators keep their state."""

    def before_instantiate_classes(self) -> None:
        """Do nothing."""

    def instantiate_classes(self) -> None:
        """Do nothing."""

    def after_instantiate_classes(self) -> None:
        """Do nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Do nothing."""
