"""The server: runs the rounds of a federation."""

import copy
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.aggregation.base import Aggregate, Aggregator, Weighting, weight_of
from fl_lightning.aggregation.fedavg import FedAvg
from fl_lightning.callbacks.preparation import order_checkpoints
from fl_lightning.callbacks.rounds import RoundCallback
from fl_lightning.data import FederatedDataModule
from fl_lightning.distributed import broadcast_from_zero, sum_over_ranks
from fl_lightning.local import LocalTraining
from fl_lightning.module import FederatedModule
from fl_lightning.randomness import seed_for, seed_global_generators
from fl_lightning.rounds import Round
from fl_lightning.state import StateDict, exact_dtype
from fl_lightning.store import ClientStore
from fl_lightning.transforms import UploadTransform
from fl_lightning.update import ClientUpdate, state_bytes


class FederatedServer(Callback):
    """Orchestrates a round: begin, train each client, receive, reduce over ranks, finish, install the new state.

    Args:
        aggregator: how the clients' updates become the next global model; by default FedAvg.
        weighting: ``samples`` weighs a client with its number of samples, ``uniform`` all alike.
        client: how a client trains.
        optimizer: moves the global model, with ``model - aggregate`` as its gradient: any ``torch.optim`` class, Adam
            gives FedAdam, SGD with momentum FedAvgM. By default the aggregate is installed exactly.
        transforms: what happens to an update on its way to the server, in this order.
        client_folder: keeps what an algorithm remembers of each client in a folder instead of in memory.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        weighting: Weighting = "samples",
        client: LocalTraining | None = None,
        optimizer: Callable[[Iterable], Optimizer] | None = None,
        transforms: list[UploadTransform] | None = None,
        client_folder: str | None = None,
    ) -> None:
        if weighting not in ("samples", "uniform"):
            raise MisconfigurationException(f"weighting={weighting!r}: set server.weighting to samples or uniform")
        self.aggregator = aggregator or FedAvg()
        self.weighting = weighting
        self.client = client or LocalTraining()
        self.optimizer = optimizer
        self.transforms = transforms or []
        self.store = ClientStore(client_folder)
        self._fresh_aggregator_state = copy.deepcopy(self.aggregator.state_dict())
        self._forget()

    def _forget(self) -> None:
        """Back to before the first round."""
        self.aggregator.load_state_dict(copy.deepcopy(self._fresh_aggregator_state))
        self.store.load_state_dict(ClientStore().state_dict())
        #: where the clients go on from, if that is not the served model
        self._clients_state: StateDict | None = None
        self._bytes = {"up": 0, "down": 0}
        self._saved_run: dict[str, Any] | None = None
        self._current_run: dict[str, Any] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the model is set up: refuses what cannot work, before anything is trained."""
        if not isinstance(pl_module, FederatedModule):
            raise MisconfigurationException(
                f"FederatedServer got a {type(pl_module).__name__}: wrap it,"
                f" trainer.fit(FederatedModule({type(pl_module).__name__}(...)), ...)"
            )
        pl_module.register_server(self)
        # Every rank evaluates on all the data: a distributed sampler would repeat samples to fill up the last batch.
        trainer._accelerator_connector.use_distributed_sampler = False
        trainer.log_every_n_steps = 1  # type: ignore[attr-defined]
        if isinstance(trainer.strategy, DDPStrategy):
            # The process group is needed, the wrapper is not: ranks exchange updates, not gradients.
            trainer.strategy.configure_ddp = lambda: None  # type: ignore[method-assign]
        if stage == "fit":
            order_checkpoints(trainer)
            _data_of(trainer)
            if trainer.current_epoch == 0:  # the server may have run another fit; a checkpoint is loaded after this
                self._forget()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model is on its device and restored."""
        data = _data_of(trainer)
        self._current_run = self._run(trainer)
        if self._saved_run is not None and self._saved_run != self._current_run:
            was, now = self._saved_run, self._current_run
            name = next(name for name in was if was[name] != now.get(name))
            raise MisconfigurationException(
                f"the checkpoint is of a run with {name}={was[name]}, this one has {name}={now.get(name)}:"
                " resume with the config.yaml of that run"
            )
        module = pl_module.module
        assert isinstance(module, LightningModule)
        for tensor in module.state_dict().values():
            if isinstance(tensor, Tensor):
                broadcast_from_zero(tensor)
        self.aggregator.prepare(module, data.num_clients, data.seed, self.store)
        self.client.prepare(module, data, self.aggregator.client_callbacks())
        gc.freeze()  # what is there now stays: collecting the clients' Trainers need not look at it again

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the first round."""
        if trainer.current_epoch > 0:
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                    _forget_from(logger, trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before each round: what is random in validation too must not depend on the rounds before."""
        seed_global_generators(seed_for("round", _data_of(trainer).seed, trainer.current_epoch))

    def run_round(self, pl_module: FederatedModule, clients: list[int]) -> None:
        """Called by the module's training step, on every rank with its own clients, maybe none."""
        trainer, module = pl_module.trainer, pl_module.module
        data = _data_of(trainer)
        if self._clients_state is not None:
            module.load_state_dict(self._clients_state)
        self.aggregator.begin_round(module)
        round = Round(
            number=trainer.current_epoch,
            num_rounds=trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None,
            seed=data.seed,
            start={name: value.clone() for name, value in module.state_dict().items() if isinstance(value, Tensor)},
            broadcast=self.aggregator.broadcast(),
            personal=self.aggregator.personal_state,
            store=self.store,
        )
        down = state_bytes(round.start) + state_bytes(round.broadcast)
        watchers = [callback for callback in trainer.callbacks if isinstance(callback, RoundCallback)]  # type: ignore[attr-defined]
        tally = _Tally(pl_module.device)

        for watcher in watchers:
            watcher.on_round_start(trainer, pl_module, round, clients)
        for update in self.client.train_cohort(clients, round):
            for transform in self.transforms:
                update = transform(update, round, self.aggregator.layout)
            weight = weight_of(update, self.weighting)
            for watcher in watchers:  # first: an aggregator may replace what the client started from
                watcher.on_client_end(trainer, pl_module, update, weight)
            self.aggregator.receive(update, weight)
            tally.add(update, weight, down)
        self.aggregator.reduce()
        aggregate = self.aggregator.finish_round()
        self._install(pl_module, aggregate)
        for watcher in watchers:
            watcher.on_round_end(trainer, pl_module, aggregate)
        gc.collect()  # Trainers are reference cycles

        self.log_round(pl_module, {**tally.totals(self._bytes), **aggregate.metrics}, round.number)

    def next_start(self, pl_module: FederatedModule) -> StateDict:
        """Where the clients of the next round start; with two models, that is not the served one."""
        return pl_module.state_dict() if self._clients_state is None else self._clients_state

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called at the end."""
        self.client.release()
        gc.unfreeze()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when a run breaks off."""
        self.client.release()
        gc.unfreeze()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the served model. Plain types and tensors, for ``weights_only`` loading."""
        return {
            "run": self._current_run,
            "aggregator": self.aggregator.state_dict(),
            "store": self.store.state_dict(),
            "clients_state": self._clients_state,
            "bytes": dict(self._bytes),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._saved_run = state_dict["run"]
        if self._saved_run["aggregator"] == type(self.aggregator).__name__:
            self.aggregator.load_state_dict(state_dict["aggregator"])
        self.store.load_state_dict(state_dict["store"])
        self._clients_state = state_dict["clients_state"]
        self._bytes = dict(state_dict["bytes"])

    def _install(self, pl_module: FederatedModule, aggregate: Aggregate) -> None:
        pl_module.move_towards(aggregate.state)
        if aggregate.served_state is aggregate.state:
            self._clients_state = None
            return
        # Two models: Lightning sees the served one, the clients' one waits for the next round.
        module = pl_module.module
        assert isinstance(module, LightningModule)
        self._clients_state = copy.deepcopy(dict(module.state_dict()))
        module.load_state_dict(aggregate.served_state)

    def log_round(self, pl_module: FederatedModule, metrics: dict[str, Any], step: int) -> None:
        """Writes numbers of a round to the loggers, and makes them known to monitors."""
        # To the loggers at once: what is logged at the end of an epoch is written after the checkpoint, and a kill
        # in between would lose it.
        values = {name: float(value) for name, value in metrics.items()}
        for logger in pl_module.trainer.loggers:
            logger.log_metrics(values, step=step)
        for name, value in values.items():
            pl_module.log(name, value, logger=False, prog_bar=name == "train/loss", batch_size=1)

    def _run(self, trainer: Trainer) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        data = _data_of(trainer)
        return {
            "aggregator": type(self.aggregator).__name__,
            "server_optimizer": type(trainer.optimizers[0]).__name__,
            "num_clients": data.num_clients,
            "seed": data.seed,
        }


class _Tally:
    """What is counted over the clients of a round, on all ranks."""

    def __init__(self, device: torch.device) -> None:
        # weight, weighted loss, clients, bytes up, bytes down
        self._sums = torch.zeros(5, dtype=exact_dtype(device), device=device)

    def add(self, update: ClientUpdate, weight: float, down: int) -> None:
        loss = update.metrics.get("loss")
        if loss is not None:
            self._sums[0] += weight
            self._sums[1] += weight * loss
        self._sums[2] += 1
        self._sums[3] += (update.num_bytes or 0) + state_bytes(update.extras)
        self._sums[4] += down

    def totals(self, bytes_so_far: dict[str, int]) -> dict[str, float]:
        weight, loss, clients, up, down = sum_over_ranks(self._sums).tolist()
        bytes_so_far["up"] += int(up)
        bytes_so_far["down"] += int(down)
        totals = {"train/loss": loss / weight} if weight else {}
        return totals | {
            "round/clients": clients,
            "bytes/up": up,
            "bytes/down": down,
            "bytes/up_total": float(bytes_so_far["up"]),
            "bytes/down_total": float(bytes_so_far["down"]),
        }


def _data_of(trainer: Trainer) -> FederatedDataModule:
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        raise MisconfigurationException(
            f"the data is a {type(data).__name__}: wrap it, FederatedDataModule(source, partition=..., selection=...)"
        )
    return data


def _forget_from(logger: TensorBoardLogger, step: int) -> None:
    """Tells TensorBoard that the run restarts at ``step``: points of a round that was cut off do not count."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    writer = logger.experiment._get_file_writer()
    writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))
