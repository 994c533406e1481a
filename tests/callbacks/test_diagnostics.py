"""The values that diagnostics log: compared with NumPy, with every algorithm, on two processes, after a resume."""

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger

from fl_lightning import LocalTraining
from fl_lightning.aggregation import FedAdp, FedAvg, FedBN, FedDNA, FedNNNN, NormNorm
from fl_lightning.callbacks import (
    AngleDiagnostics,
    ClientEvaluation,
    DivergenceDiagnostics,
    FederatedServer,
    LearningRateDecay,
    NormDiagnostics,
    Participation,
)
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ClassesPerClient, RandomClients
from fl_lightning.models import Classifier, FullyConnected
from tests.callbacks.test_server import Keep, read_metrics
from tests.metrics import reference
from tests.test_every_algorithm import ALGORITHMS, fitting_model
from tests.toys import Blobs, Net, federate, quiet_trainer


def diagnostics() -> list:
    return [NormDiagnostics(), AngleDiagnostics(), DivergenceDiagnostics(), Participation()]


def run(folder, name="run", aggregator=None, callbacks=None, rounds=3, module=None, server=None, **options):
    """Run a federation; return the logged numbers by round, what passed through the server, and the Trainer."""
    logger, keep = CSVLogger(folder, name), Keep()
    torch.manual_seed(0)
    _, trainer = federate(
        module or Net(batch_norm=True),
        partition=options.pop("partition", ClassesPerClient(10, 2, sizes="power_law")),
        selection=options.pop("selection", RandomClients(count=5)),
        server=server or FederatedServer(aggregator or FedAvg(), client=LocalTraining(epochs=1)),
        callbacks=[keep, *(diagnostics() if callbacks is None else callbacks)],
        rounds=rounds,
        logger=logger,
        **options,
    )
    return read_metrics(CSVLogger(folder, name, version=0)), keep, trainer


def only(row: dict[str, float], *prefixes: str) -> dict[str, float]:
    return {tag: value for tag, value in row.items() if tag.startswith(prefixes)}


@pytest.mark.parametrize("aggregator", [FedAvg, lambda: FedNNNN(beta=0.7, gamma=0.8)])
def test_norms_of_a_run_agree_with_numpy(aggregator, tmp_path):
    rows, keep, trainer = run(tmp_path, aggregator=aggregator())
    server = next(callback for callback in trainer.callbacks if isinstance(callback, FederatedServer))
    starts = [*keep.starts, server.next_start(trainer.lightning_module)]
    model, integral = Net(batch_norm=True), {}
    for round_, row in rows.items():
        states, weights = zip(*((update.state, weight) for update, weight in keep.updates[round_]), strict=True)
        expected = reference.norms(model, starts[round_], states, weights, starts[round_ + 1])
        for group in reference.groups(model):
            integral[group] = integral.get(group, 0) + expected[f"{group}/move"]
            expected[f"{group}/integral"] = integral[group]
        tagged = {f"norms/{name}": value for name, value in expected.items()}
        assert only(row, "norms/") == pytest.approx(tagged, rel=1e-5)


def test_a_client_of_fedbn_is_measured_relative_to_its_own_layers(tmp_path):
    rows, keep, _ = run(tmp_path, aggregator=FedBN())
    names = [name for name, layer in Net(batch_norm=True).named_modules() if isinstance(layer, torch.nn.BatchNorm1d)]
    keys = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    own: dict[int, dict] = {}
    for round_, row in rows.items():
        lengths, weights = [], []
        for update, weight in keep.updates[round_]:
            start = own.get(update.client, keep.starts[round_])
            moved = np.concatenate([(update.state[key].double() - start[key].double()).numpy().ravel() for key in keys])
            lengths.append(np.linalg.norm(moved))
            weights.append(weight)
            own[update.client] = update.state
        assert row["norms/normalisation/E"] == pytest.approx(np.average(lengths, weights=weights), rel=1e-5)


class Scheduled(Net):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)]


def test_a_client_reports_the_learning_rate_of_its_last_step(tmp_path):
    _, keep, _ = run(tmp_path, module=Scheduled(batch_norm=True), rounds=1)
    assert {update.learning_rate for update, _ in keep.updates[0]} == {0.1}


@pytest.mark.parametrize("samples", ["validation", "own"])
def test_two_processes_with_uneven_shares_evaluate_clients_as_one_does(samples, tmp_path):
    def evaluated(name: str, **options):
        torch.manual_seed(0)
        module = Classifier(FullyConnected(6, (5,), 4), num_classes=4)
        rows, _, _ = run(
            tmp_path, name, module=module, callbacks=[ClientEvaluation(samples=samples)], rounds=2, **options
        )
        return [only(row, "clients/") for row in rows.values()]

    one = evaluated("one", devices=1, partition=ClassesPerClient(5, 2))
    assert len(one[0]) > 6
    two = evaluated("two", devices=2, strategy="ddp_fork", partition=ClassesPerClient(5, 2))
    for first, second in zip(one, two, strict=True):
        assert first == pytest.approx(second, rel=1e-5, abs=1e-7)


def test_the_logged_angles_of_a_fedadp_run_are_the_ones_it_weights_clients_by(tmp_path):
    server = FederatedServer(FedAdp(alpha=3))
    rows, keep, _ = run(tmp_path, server=server)
    aggregator, last = server.aggregator, rows[2]
    for tag, values in (
        ("angles", aggregator.angles),
        ("angles_smoothed", aggregator.smoothed_angles),
        ("angle_weights", aggregator.contributions),
    ):
        expected = {f"{tag}/client_{client:03d}": value for client, value in values.items()}
        assert only(last, f"{tag}/") == pytest.approx(expected, rel=1e-5)
    assert set(aggregator.angles) == set(keep.cohorts[2])


def test_the_divergence_of_gradients_uses_the_rounds_learning_rate(tmp_path):
    client = LocalTraining(epochs=1, callbacks=[LearningRateDecay(0.5)])
    rows, keep, _ = run(tmp_path, server=FederatedServer(client=client))
    model = Net(batch_norm=True)
    for round_, row in rows.items():
        states, weights = zip(*((update.state, weight) for update, weight in keep.updates[round_]), strict=True)
        g, each = reference.gradients(model, keep.starts[round_], states, weights, rate=0.1 * 0.5**round_)
        expected = np.mean([np.linalg.norm(g - g_k) for g_k in each])
        assert row["divergence/gradient"] == pytest.approx(expected, rel=1e-5)


def test_the_served_model_is_compared_with_the_reference(tmp_path):
    _, keep, trainer = run(tmp_path, "central", callbacks=[])
    trainer.save_checkpoint(tmp_path / "reference.ckpt")
    callbacks = [DivergenceDiagnostics(reference=str(tmp_path / "reference.ckpt"))]
    rows, other, _ = run(tmp_path, callbacks=callbacks, selection=RandomClients(count=2))
    mean, var = (
        [reference.vector(state, [f"layers.1.{name}"]) for state in (other.ends[2], keep.ends[2])]
        for name in ("running_mean", "running_var")
    )
    expected = reference.kl(mean[0], var[0] + 1e-5, mean[1], var[1] + 1e-5)
    assert rows[2]["divergence/statistics"] == pytest.approx(expected, rel=1e-5)
    assert rows[2]["divergence/parameters"] > 0


def test_the_gammas_of_feddna_are_logged_per_client(tmp_path):
    server = FederatedServer(FedDNA(steps=5))
    rows, _, _ = run(tmp_path, server=server, callbacks=[DivergenceDiagnostics()])
    expected = {f"feddna/gamma_client_{client:03d}": gamma for client, gamma in server.aggregator.gammas.items()}
    assert only(rows[2], "feddna/gamma_client") == pytest.approx(expected)


def test_participation_counts_the_cohorts(tmp_path):
    rows, keep, _ = run(tmp_path)
    for round_, row in rows.items():
        counts = [sum(client in cohort for cohort in keep.cohorts[: round_ + 1]) for client in range(10)]
        assert [row[f"participation/client_{client:03d}"] for client in range(10)] == counts
        assert (row["participation/least"], row["participation/most"]) == (min(counts), max(counts))
        assert row["participation/clients"] == sum(count > 0 for count in counts)


def test_many_clients_do_not_get_one_curve_each(tmp_path):
    callbacks = [AngleDiagnostics(max_curves=9), DivergenceDiagnostics(max_curves=9), Participation(max_curves=9)]
    rows, _, _ = run(tmp_path, aggregator=FedDNA(steps=5), callbacks=callbacks, rounds=1)
    assert not [tag for tag in rows[0] if "client_0" in tag]
    few = {"quantile_10", "quantile_50", "quantile_90", "worst_1", "worst_2", "worst_3"}
    for prefix in ("angles/", "angles_smoothed/", "angle_weights/", "feddna/gamma_"):
        assert few <= {tag.removeprefix(prefix) for tag in rows[0]}


@pytest.mark.spread(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_diagnostics_work_with_every_algorithm_and_do_not_disturb_it(algorithm, tmp_path):
    options = {"selection": RandomClients(count=2), "rounds": 2}
    plain, _, trainer = run(tmp_path, "plain", ALGORITHMS[algorithm](), [], module=fitting_model(algorithm), **options)
    rows, _, watched = run(tmp_path, "watched", ALGORITHMS[algorithm](), module=fitting_model(algorithm), **options)
    for name, value in trainer.lightning_module.state_dict().items():
        assert torch.equal(value, watched.lightning_module.state_dict()[name])
    for round_, row in rows.items():
        assert plain[round_].items() <= row.items()
        assert all(np.isfinite(value) for value in row.values())
        assert row["norms/all/N"] <= row["norms/all/E"] * (1 + 1e-9)
        assert row["norms/all/move"] > 0


@pytest.mark.parametrize("count", [5, 1])
def test_two_processes_log_the_same_values_as_one(count, tmp_path):
    options = {"aggregator": NormNorm(beta=1.0), "selection": RandomClients(count=count)}
    one, _, _ = run(tmp_path, "one", devices=1, **options)
    two, _, _ = run(tmp_path, "two", strategy="ddp_fork", devices=2, **options)
    for round_, row in one.items():
        assert two[round_] == pytest.approx(row, rel=1e-4, abs=1e-5)


def test_a_stopped_and_resumed_run_logs_the_same_values_as_an_uninterrupted_one(tmp_path):
    whole, _, _ = run(tmp_path, "whole", rounds=4)
    _, _, trainer = run(tmp_path, "begun", rounds=2)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    resumed, _, _ = run(tmp_path, "resumed", rounds=4, ckpt_path=tmp_path / "begun.ckpt")
    assert resumed == {round_: whole[round_] for round_ in (2, 3)}


def test_a_second_fit_from_the_start_forgets_the_first(tmp_path):
    callbacks = diagnostics()
    first, _, _ = run(tmp_path, "first", callbacks=callbacks)
    second, _, _ = run(tmp_path, "second", callbacks=callbacks)
    assert first == second


def test_the_clients_own_samples_show_which_clients_the_model_serves_badly(tmp_path):
    rows, keep, trainer = run(tmp_path, callbacks=[ClientEvaluation(samples="own")], rounds=1)
    module = Net(batch_norm=True).eval()
    module.load_state_dict(keep.ends[0])
    inputs, labels = trainer.datamodule.source.dataset.tensors
    correct = (module(inputs).argmax(1) == labels).double().numpy()
    accuracies = [correct[trainer.datamodule.indices(client)].mean() for client in range(10)]
    assert rows[0]["clients/val_accuracy_mean"] == pytest.approx(np.mean(accuracies), rel=1e-6)
    assert rows[0]["clients/val_accuracy_std"] == pytest.approx(np.std(accuracies), rel=1e-6)
    assert rows[0]["clients/val_accuracy_worst"] == pytest.approx(np.min(accuracies), rel=1e-6)


def test_a_checkpoint_can_monitor_what_diagnostics_log(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path, monitor="norms/all/integral", mode="max", filename="best")
    rows, _, trainer = run(tmp_path, callbacks=[NormDiagnostics(), best], enable_checkpointing=True)
    assert best.best_model_score == pytest.approx(rows[2]["norms/all/integral"])
    assert trainer.callback_metrics["norms/all/N"] == pytest.approx(rows[2]["norms/all/N"])


class Plain(Net):
    """Keeps its weights after every epoch."""

    def on_train_start(self):
        self.states = [self._copy()]

    def on_train_epoch_end(self):
        self.states.append(self._copy())

    def _copy(self):
        return {name: value.clone() for name, value in self.state_dict().items()}


def fit_plain(tmp_path, name, epochs, ckpt_path=None, reference_path=None):
    logger = CSVLogger(tmp_path, name)
    callbacks = [NormDiagnostics()]
    if reference_path is not None:
        callbacks.append(DivergenceDiagnostics(reference=str(reference_path)))
    torch.manual_seed(0)
    trainer = quiet_trainer(max_epochs=epochs, logger=logger, callbacks=callbacks, log_every_n_steps=1000)
    module = Plain(batch_norm=True)
    data = Blobs()
    data.setup("fit")
    trainer.fit(module, torch.utils.data.DataLoader(data.dataset, batch_size=8), ckpt_path=ckpt_path)
    return {step: only(row, "norms/", "divergence/") for step, row in read_metrics(logger).items()}, module, trainer


def test_a_plain_module_logs_its_move_in_every_epoch(tmp_path):
    rows, module, trainer = fit_plain(tmp_path, "plain", epochs=3)
    integral = 0.0
    for epoch in range(3):
        names = ["layers.0.weight", "layers.0.bias"]
        first, second = (reference.vector(module.states[number], names) for number in (epoch, epoch + 1))
        integral += np.linalg.norm(second - first)
        assert rows[epoch]["norms/layers.0/move"] == pytest.approx(np.linalg.norm(second - first), rel=1e-5)
        assert rows[epoch]["norms/layers.0/integral"] == pytest.approx(integral, rel=1e-5)
        assert "norms/all/N" not in rows[epoch]
    assert trainer.callback_metrics["norms/layers.0/integral"] == pytest.approx(integral, rel=1e-5)


def test_a_plain_run_is_resumed_and_compared_with_a_reference(tmp_path):
    whole, _, _ = fit_plain(tmp_path, "whole", epochs=3)
    _, _, trainer = fit_plain(tmp_path, "begun", epochs=2)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    rows, _, _ = fit_plain(tmp_path, "resumed", 3, tmp_path / "begun.ckpt", tmp_path / "begun.ckpt")
    assert only(rows[2], "norms/") == pytest.approx(whole[2])
    assert rows[2]["divergence/statistics"] > 0


@pytest.mark.parametrize("callback", [AngleDiagnostics(), DivergenceDiagnostics(), Participation()])
def test_diagnostics_that_compare_clients_are_refused_on_a_plain_module(callback):
    trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
    with pytest.raises(MisconfigurationError, match="compares clients, but Net has none: wrap it") as error:
        trainer.fit(Net(), Blobs())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("callback", [AngleDiagnostics, DivergenceDiagnostics, Participation])
def test_a_negative_number_of_curves_is_refused(callback):
    with pytest.raises(MisconfigurationError, match="max_curves=-1, but it is a number of clients"):
        callback(max_curves=-1)


def test_a_reference_of_another_model_is_refused_before_training(tmp_path):
    torch.save({"state_dict": Net(hidden=3).state_dict()}, tmp_path / "other.ckpt")

    class Untrained(Net):
        def training_step(self, batch, batch_idx):
            raise AssertionError("trained")

    assert isinstance(Untrained(), LightningModule)
    with pytest.raises(MisconfigurationError, match="the reference is a different model"):
        federate(Untrained(), callbacks=[DivergenceDiagnostics(reference=str(tmp_path / "other.ckpt"))])
