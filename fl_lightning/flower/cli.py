"""The same configuration on the server and on the nodes."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_lightning import __version__
from fl_lightning._lightning.names import Callback, ProgressBar, Trainer
from fl_lightning._lightning.quiet import silence_irrelevant_messages
from fl_lightning.callbacks import FederatedServer
from fl_lightning.cli.app import FederatedCLI
from fl_lightning.cli.errors import shorten_parser_error
from fl_lightning.cli.failures import find_mistake
from fl_lightning.core.arguments import kept_arguments
from fl_lightning.core.errors import MisconfigurationError, RoundFailedError, StorageError
from fl_lightning.core.federation import FederationSettings
from fl_lightning.data import AllClients, FederatedDataModule
from fl_lightning.experiments.settings import flatten
from fl_lightning.flower.memory import NodeMemory
from fl_lightning.flower.node import Answer, Node, OwnData, Undivided
from fl_lightning.flower.post import Post
from fl_lightning.flower.remote_data import RemoteData
from fl_lightning.flower.remote_training import RemoteTraining
from fl_lightning.flower.roll import Roll
from fl_lightning.flower.round_lines import RoundLines
from fl_lightning.flower.traffic import WireTraffic

#: sections in which a node must agree with the server; its data and its Trainer are its own
_COMMON = ("seed_everything", "model", "client", "server")
#: keys of Flower's --node-config that are not settings of the run
_NODE_KEYS = ("partition-id", "num-partitions", "config", "folder")


class ServerCLI(FederatedCLI):
    """Runs ``fit`` with clients on other machines.

    Args:
        args: the command line, beginning with ``fit``.
        post: delivers packets to the nodes.
    """

    def __init__(self, args: list[str], post: Post) -> None:
        self._post = post
        super().__init__(args)

    def instantiate_classes(self) -> None:
        """Instantiate everything as for a simulation, then replace the data and the training."""
        super().instantiate_classes()
        settings: FederationSettings = self.config_init[str(self.subcommand)]["federation"]
        data = self.datamodule
        num_clients = settings.num_clients or getattr(data.partition, "num_clients", None)
        if num_clients is None:
            raise MisconfigurationError("the number of clients is not known: set federation.num_clients")
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        server = next(callback for callback in callbacks if isinstance(callback, FederatedServer))
        identity = {
            "version": __version__,
            "settings": common_settings(self.dump()),
            "class_counts": server.aggregator.needs_class_counts,
        }
        roll = Roll(self._post, identity, num_clients)
        self.datamodule = RemoteData(**kept_arguments(data))
        self.datamodule.roll, self.datamodule.wait = roll, settings.wait
        same_shapes = getattr(server.aggregator, "max_width", None) is None
        training = RemoteTraining(self._post, roll, server, settings, same_shapes)
        server.training = training
        bars = [callback for callback in callbacks if isinstance(callback, ProgressBar)]
        for bar in bars:
            callbacks.remove(bar)
        callbacks += [WireTraffic(training), RoundLines()]


class NodeCLI(FederatedCLI):
    """Runs a node until ``serve`` returns.

    Args:
        args: the command line, beginning with ``fit``.
        node_config: the contents of Flower's ``--node-config``.
        folder: the node's folder.
        serve: called with a function that answers a packet.
    """

    def __init__(
        self, args: list[str], node_config: Mapping[str, Any], folder: Path, serve: Callable[[Answer], None]
    ) -> None:
        self._node_config = node_config
        self._node_folder = folder
        self._serve = serve
        super().__init__(args)

    def before_instantiate_classes(self) -> None:
        """Leave out what only the server has: loggers, callbacks of rounds and checkpoints."""
        config = self.command_config
        self._settings = common_settings(self.dump())
        config.ckpt_path = None
        config.trainer.callbacks = None
        config.trainer.logger = None

    def instantiate_classes(self) -> None:
        """Instantiate the model, the data and the node's Trainer."""
        super().instantiate_classes()
        if "num-partitions" not in self._node_config:
            arguments = kept_arguments(self.datamodule)
            partition = Undivided(self._server.aggregator.needs_class_counts)
            self.datamodule = OwnData(**{**arguments, "partition": partition, "selection": AllClients()})

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Instantiate a Trainer for a single client at a time, on the accelerator that the node's overlay names."""
        config = self.command_config.trainer
        self._server: FederatedServer = self.config_init[str(self.subcommand)]["server"]
        node = Node(self._server, self._clients, self._settings, NodeMemory(self._node_folder / "memory"), self._serve)
        devices = config.devices if isinstance(config.devices, list | str) and config.devices != "auto" else 1
        return Trainer(
            accelerator=config.accelerator,
            devices=devices,
            deterministic=config.deterministic,
            benchmark=config.benchmark,
            max_epochs=1,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[node],
        )

    def _clients(self, data: FederatedDataModule) -> Sequence[int]:
        """Return the clients of this node: itself, or its share of a simulated partition."""
        number, parts = self._node_config["partition-id"], self._node_config.get("num-partitions")
        return [number] if parts is None else range(number, data.num_clients, parts)


def common_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which the server and its nodes must agree, by key."""
    settings = flatten({section: config.get(section) for section in _COMMON})
    return {key: value for key, value in settings.items() if key != "server.client_folder"}


def node_arguments(config: str, node_config: Mapping[str, Any]) -> list[str]:
    """Return the command line of a node: the app's config, the node's overlay, and its further settings."""
    number, parts = node_config.get("partition-id"), node_config.get("num-partitions")
    if type(number) is not int or number < 0:
        raise MisconfigurationError(
            f"partition-id={number} in --node-config: set it to the client's number, counted from 0"
        )
    if parts is not None and (type(parts) is not int or not number < parts):
        raise MisconfigurationError(
            f"partition-id={number} and num-partitions={parts} in --node-config: set num-partitions to the number of"
            " nodes that share the simulated partition, or leave it out"
        )
    overlay = ["--config", str(node_config["config"])] if "config" in node_config else []
    settings = [f"--{key}={value}" for key, value in node_config.items() if key not in _NODE_KEYS]
    return ["fit", "--config", config, *overlay, *settings]


def run_server(config: str, options: str, post: Post) -> None:
    """Run the server of a federation. What ``fl-lightning fit`` reports in one line has no traceback here either.

    Args:
        config: the app's config.
        options: further options of ``fl-lightning fit``, such as ``--ckpt_path last``.
        post: delivers packets to the nodes.
    """
    sys.argv = ["fl-lightning"]  # the process belongs to Flower, and its options hold a secret
    silence_irrelevant_messages()
    try:
        ServerCLI(["fit", "--config", config, *shlex.split(options)], post)
    except Exception as error:
        known = error if isinstance(error, RoundFailedError | StorageError) else find_mistake(error)
        if known is None:
            raise
        sys.tracebacklimit = 0  # Flower logs the traceback of every error, and ends the process
        raise type(known)(shorten_parser_error(str(known))) from None
