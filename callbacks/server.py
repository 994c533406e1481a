"""The server: runs the rounds of a federation."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning._lightning.checkpoint import (
    example_of_checkpoint,
    explain_failed_restores,
    verify_checkpoints,
)
from fl_lightning._lightning.client_module import without_compilation
from fl_lightning._lightning.evaluation_loop import Sharing, share_evaluation
from fl_lightning._lightning.names import Callback, LightningModule, Trainer, rank_zero_info
from fl_lightning._lightning.package import explain_mixed_copies, refuse_other_copy
from fl_lightning._lightning.server_trainer import (
    evaluated_metrics,
    keep_samplers,
    leave_model_unwrapped,
    skip_stale_scores,
)
from fl_lightning._lightning.tensorboard import mark_restart, tensorboard_loggers
from fl_lightning.aggregation import Aggregator, FedAvg, Federation, Weighting
from fl_lightning.aggregation.base import weight_of
from fl_lightning.attacks import Attack
from fl_lightning.callbacks.round_callback import RoundCallback, log_round
from fl_lightning.callbacks.run.global_model import GlobalModel
from fl_lightning.callbacks.run.identity import refuse_other_run, run_identity
from fl_lightning.callbacks.run.lost_clients import LostClients, run_folder
from fl_lightning.callbacks.run.monitors import explain_client_metrics, remove_learning_rate_monitor
from fl_lightning.callbacks.run.preparation import (
    adapt_callbacks,
    add_round_callbacks,
    belongs_to_clients,
    check_flags,
    federated_data,
    order_checkpoints,
    refuse_client_callbacks,
    refuse_round_callbacks,
    refuse_tuners,
)
from fl_lightning.callbacks.run.progress import RoundProgressBar
from fl_lightning.callbacks.run.resumable import explain_failed_restore, read_checkpoint
from fl_lightning.callbacks.run.rich_progress import RichRoundProgressBar
from fl_lightning.callbacks.run.spoilt_model import ModelCheck
from fl_lightning.callbacks.run.tally import Tally
from fl_lightning.client import CohortTraining, LocalTraining
from fl_lightning.core.distributed import broadcast_from_zero
from fl_lightning.core.errors import MisconfigurationError, refuse_classes
from fl_lightning.core.evaluations import Evaluations
from fl_lightning.core.folders import check_new_folder
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import seed_for, seed_global_generators
from fl_lightning.core.round import Round
from fl_lightning.core.soundness import SoundnessCheck
from fl_lightning.core.state import StateDict, snapshot
from fl_lightning.core.store import ClientStore
from fl_lightning.core.traffic import Downloads
from fl_lightning.core.update import ClientUpdate, LostClient
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.evaluation import share_of, why_not_shared
from fl_lightning.module import FederatedModule, RoundRunner
from fl_lightning.transforms import UploadTransform


class FederatedServer(RoundRunner):
    """Orchestrates a round: begin, train each client, receive, reduce over ranks, finish, install the new state.

    Args:
        aggregator: how the clients' updates become the next global model; by default FedAvg.
        weighting: ``samples`` weights a client by its number of samples, ``uniform`` weights all clients equally.
        client: how a client trains.
        optimizer: moves the global model, with ``model - aggregate`` as its gradient. It can be any ``torch.optim``
            class: Adam yields FedAdam, SGD with momentum yields FedAvgM. By default, the aggregate is copied exactly.
        transforms: transforms that are applied in this order to each update on its way to the server.
        client_folder: folder for what is remembered about each client; by default, this stays in memory.
        min_clients: the run stops if fewer clients of a round are left, because the others failed or dropped out.
    """

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        weighting: Weighting = "samples",
        client: LocalTraining | None = None,
        optimizer: Callable[[Iterable], Optimizer] | None = None,
        transforms: list[UploadTransform] | None = None,
        client_folder: str | None = None,
        min_clients: int = 1,
    ) -> None:
        mixture = explain_mixed_copies()
        if mixture is not None:
            rank_zero_info(mixture)
        refuse_classes(aggregator=aggregator, client=client)
        if weighting not in ("samples", "uniform"):
            raise MisconfigurationError(f"weighting={weighting!r}: set server.weighting to samples or uniform")
        check_number("min_clients", min_clients, at_least=1, setting="server.min_clients")
        self.aggregator = aggregator or FedAvg()
        self.weighting = weighting
        self.client = client or LocalTraining()
        #: trains the clients of a round, as :attr:`client` says, in this process unless it is replaced
        self.training: CohortTraining = self.client
        self.optimizer = optimizer
        self.transforms = transforms or []
        compressing = [type(transform).__name__ for transform in self.transforms if transform.compresses]
        if len(compressing) > 1:
            raise MisconfigurationError(
                f"transforms has {' and '.join(compressing)}, but only one of them can count the bytes that it saves:"
                " keep one in server.transforms"
            )
        self.client_folder = client_folder
        self.min_clients = min_clients
        self.store = ClientStore(client_folder)
        self._module_callbacks: list[Callback] = []
        self._fresh_aggregator_state = copy.deepcopy(self.aggregator.state_dict())
        self._reset()

    def _reset(self) -> None:
        """Restore the state before the first round."""
        self.aggregator.load_state_dict(copy.deepcopy(self._fresh_aggregator_state))
        self.store.load_state_dict(ClientStore().state_dict())
        self._model = GlobalModel()
        self._evaluations = Evaluations()
        self._bytes = {"up": 0, "down": 0}
        self._validated_round: int | None = None
        self._downloads = Downloads()
        self._saved_run: dict[str, Any] | None = None
        self._current_run: dict[str, Any] = {}

    def prepare_trainer(self, trainer: Trainer) -> None:
        refuse_tuners(trainer)
        refuse_other_copy(*trainer.callbacks, *trainer.loggers)  # type: ignore[attr-defined]
        refuse_client_callbacks(trainer)
        refuse_round_callbacks(self.client.callbacks)
        check_flags(trainer)
        add_round_callbacks(trainer)
        if self.optimizer is None:
            remove_learning_rate_monitor(trainer)

    def assign_callbacks(self, callbacks: Sequence[Callback]) -> list[Callback]:
        self._module_callbacks = [callback for callback in callbacks if belongs_to_clients(callback)]
        return [callback for callback in callbacks if callback not in self._module_callbacks]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Reject unsupported modules and data before training starts, and adapt the Trainer to rounds."""
        if not isinstance(pl_module, FederatedModule):
            raise MisconfigurationError(
                f"FederatedServer got a {type(pl_module).__name__}: wrap it,"
                f" trainer.fit(FederatedModule({type(pl_module).__name__}(...)), ...)"
            )
        refuse_tuners(trainer)
        without_compilation(pl_module)
        keep_samplers(trainer)
        share_evaluation(trainer, Sharing(pl_module.module, why_not_shared, share_of))
        leave_model_unwrapped(trainer)
        trainer.log_every_n_steps = 1  # type: ignore[attr-defined]
        weights = [name for name, _ in pl_module.module.named_parameters()]
        needed: Any = {"resume": stage == "fit", "weights": weights, "server": self.state_key}
        verify_checkpoints(
            trainer, partial(read_checkpoint, example=lambda: example_of_checkpoint(trainer, self.state_key), **needed)
        )
        explain_failed_restores(trainer, partial(explain_failed_restore, **needed))
        if stage == "fit":
            order_checkpoints(trainer)
            adapt_callbacks(trainer)
            federated_data(trainer)
            if trainer.current_epoch == 0:  # the server may have run another fit; a checkpoint is loaded after this
                self._reset()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare the aggregator and the clients, now that the model is on its device and restored."""
        data = federated_data(trainer)
        self._current_run = run_identity(self.aggregator, trainer.optimizers[0] if self.optimizer else None, data)
        if self._saved_run is not None:
            refuse_other_run(self._saved_run, self._current_run)
        if self._model.clients_state is not None:
            assert isinstance(pl_module, FederatedModule)
            pl_module.refuse_other_model(self._model.clients_state)
        if self.client_folder is not None:
            check_new_folder(Path(self.client_folder), "server.client_folder")
        if self._saved_run is None:
            self.store.check_empty()
        if trainer.is_global_zero:
            self.store.remove_incomplete()
        module = pl_module.module
        assert isinstance(module, LightningModule)
        for tensor in module.state_dict().values():
            if isinstance(tensor, Tensor):
                broadcast_from_zero(tensor)
        self.store.move_to(pl_module.device)
        self.aggregator.memory = self.store.part(type(self.aggregator).__name__)
        self.aggregator.prepare(
            module,
            Federation(data.num_clients, data.seed, self.weighting, self.optimizer, self.client, data.selection),
        )
        self.training.prepare(
            module,
            data,
            [*self._module_callbacks, *self.aggregator.client_callbacks()],
            self.store,
            max_batches=int(trainer.fast_dev_run) or None,  # type: ignore[attr-defined]
        )
        #: where tracebacks of clients are kept, if the run keeps any files
        self._folder = run_folder(trainer)
        self._check_cohort(data)
        for attack in [*self.transforms, *self.client.callbacks]:
            if isinstance(attack, Attack):
                rank_zero_info(attack.describe(data.num_clients, data.seed))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell TensorBoard where a resumed run continues, and the progress bar how far clients have come."""
        if not trainer.enable_validation:
            self._evaluations.expect(())
        if trainer.current_epoch > 0 and trainer.is_global_zero:
            for logger in tensorboard_loggers(trainer):
                mark_restart(logger, trainer.current_epoch)
        bar = trainer.progress_bar_callback
        if isinstance(bar, RoundProgressBar | RichRoundProgressBar) and bar.is_enabled:
            self.training.on_progress = bar.show_progress

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the round, so that nothing random in it, validation included, depends on earlier rounds."""
        seed_global_generators(seed_for("round", federated_data(trainer).seed, trainer.current_epoch))

    def resize(self, module: LightningModule, state: Mapping[str, Tensor]) -> None:
        self.aggregator.resize(module, state)

    def run_round(self, pl_module: FederatedModule, clients: list[int]) -> None:
        trainer = pl_module.trainer
        round = self._begin_round(pl_module)
        self._downloads.begin_round(round.start, round.broadcast, self.aggregator.layout)
        watchers = [callback for callback in trainer.callbacks if isinstance(callback, RoundCallback)]  # type: ignore[attr-defined]
        tally = Tally(pl_module.device, bool(self.client.log_metrics))
        # Waiting for a GPU once per client is the price of dropping a client before anything has seen its update.
        wait = self.client.on_error == "drop" or pl_module.device.type == "cpu"
        is_unsound = SoundnessCheck(
            self.aggregator.layout,
            round.start,
            self.aggregator.extras_shapes(),
            wait,
            bounded=self.client.on_error == "drop",
        )
        lost = LostClients(round.number, self.client.on_error, self.min_clients, self._folder)

        for watcher in watchers:
            watcher.on_round_start(trainer, pl_module, round, clients)
        for update in self._arriving(clients, round, is_unsound, lost):
            if isinstance(update, LostClient):
                for watcher in watchers:
                    watcher.on_client_lost(trainer, pl_module, round, update)
                tally.lose(update, self._downloads.size(update.client))
                continue
            weight = weight_of(update, self.weighting)
            for watcher in watchers:  # first, because an aggregator may replace the state that the client started from
                watcher.on_client_end(trainer, pl_module, round, update, weight)
            self.aggregator.receive(update, weight)
            for writer, values in update.memory.items():
                self.store.stage(writer, update.client, values)
            tally.add(update, weight, self._downloads.size(update.client))
        totals = tally.read(is_unsound.num_doubts(), self.store.num_new)
        if totals.failed:
            self._model.refuse_spoilt()  # it may be the reason
        lost.decide(totals, is_unsound, pl_module.device)  # after this, no client of the round can fail
        self.store.commit()
        if totals.remembered:
            self.store.exchange(pl_module.device)
        self.aggregator.reduce()
        aggregate = self.aggregator.finish_round()
        self._model.install(pl_module, aggregate, ModelCheck(round.number, is_unsound, pl_module.device))
        self._downloads.end_round(federated_data(trainer).cohort(round.number), round.start, aggregate.state)
        for watcher in watchers:
            watcher.on_round_end(trainer, pl_module, round, aggregate)

        logged = totals.values(self._bytes)
        if totals.lost or self.client.loses_clients:
            logged["round/dropped"] = float(totals.lost)
        log_round(trainer, {**logged, **aggregate.metrics})
        if "train/loss" in logged:
            loss = torch.tensor(logged["train/loss"])  # stays on the host, from which the progress bar reads it
            pl_module.log("train/loss", loss, logger=False, prog_bar=True, batch_size=1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what validation showed, for clients' schedulers that monitor it."""
        if trainer.state.fn != "fit":
            return
        values = {name: float(trainer.callback_metrics[name]) for name in evaluated_metrics(trainer)}
        if not trainer.sanity_checking:
            self._validated_round = trainer.current_epoch
            self._evaluations.record(trainer.current_epoch, values, forget_earlier=self.client.clock == "round")
        elif values:
            self._evaluations.expect(values)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep callbacks that run after this from recording an earlier round's score, or from missing a metric.

        A callback that monitors a metric that only clients log would otherwise raise an error that names no fix.
        """
        if self._validated_round != trainer.current_epoch:
            skip_stale_scores(trainer)
        if self._evaluations.names is not None:
            explain_client_metrics(trainer, self._evaluations.names, self.training.logged_names)

    def next_start(self, pl_module: FederatedModule) -> StateDict:
        """Return the state that the next round's clients start from; with two models, it is not the served one."""
        return pl_module.state_dict() if self._model.clients_state is None else self._model.clients_state

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Release what the clients used."""
        self.training.release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Return to the model of the last complete round, and release what the clients used."""
        if isinstance(pl_module, FederatedModule):
            self._model.undo_round(pl_module.module)
        self.training.release()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the served model, as plain types and tensors that Lightning loads."""
        self._model.refuse_spoilt()  # before a checkpoint is written
        return {
            "run": self._current_run,
            "aggregator": self.aggregator.state_dict(),
            "store": self.store.state_dict(),
            "clients_state": self._model.clients_state,
            "evaluations": self._evaluations.state_dict(),
            "bytes": dict(self._bytes),
            "downloads": self._downloads.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._saved_run = state_dict["run"]
        if self._saved_run["aggregator"] == type(self.aggregator).__name__:
            self.aggregator.load_state_dict(state_dict["aggregator"])
        self.store.load_state_dict(state_dict["store"])
        self._model.clients_state = state_dict["clients_state"]
        self._evaluations.load_state_dict(state_dict["evaluations"])
        self._bytes = dict(state_dict["bytes"])
        self._downloads.load_state_dict(state_dict["downloads"])

    def _begin_round(self, pl_module: FederatedModule) -> Round:
        trainer, module = pl_module.trainer, pl_module.module
        self._model.begin_round(module)
        self.store.begin_round()
        round = Round(
            number=trainer.current_epoch,
            num_rounds=trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None,
            seed=federated_data(trainer).seed,
            start=snapshot(module),
            personal=self.aggregator.personal_state,
            evaluations=self._evaluations,
            num_clients=federated_data(trainer).num_clients,
            memory=partial(self.store.get, device=pl_module.device),
        )
        self.aggregator.begin_round(module, round)
        self.aggregator.round = replace(round, broadcast=self.aggregator.broadcast())
        return self.aggregator.round

    def _arriving(
        self, clients: list[int], round: Round, is_unsound: SoundnessCheck, lost: LostClients
    ) -> Iterator[ClientUpdate | LostClient]:
        """Train the clients and yield their updates, checked and transformed, and the clients that are lost."""
        found: list[LostClient] = []

        def sound(sent: Iterable[ClientUpdate | LostClient]) -> Iterator[ClientUpdate]:
            for item in sent:
                problem = item if isinstance(item, LostClient) else is_unsound(item)
                if problem is None:
                    assert isinstance(item, ClientUpdate)
                    yield item
                    continue
                found.append(problem)
                if lost.add(problem):  # the rank's other clients need not train any more
                    return

        updates = sound(self.training.train_cohort(clients, round))
        transforms = [] if self.training.applies_transforms else self.transforms
        for transform in transforms:
            updates = transform.apply(updates, round, self.aggregator.layout)
        for update in sound(updates) if transforms else updates:
            yield from found
            found.clear()
            yield update
        yield from found

    def _check_cohort(self, data: FederatedDataModule) -> None:
        clients = len(data.cohort(0))
        if self.aggregator.needs_clients and clients < self.min_clients:
            raise MisconfigurationError(
                f"min_clients={self.min_clients}, but a round has {clients} clients: set server.min_clients to"
                f" {clients} or less, or select more clients"
            )
