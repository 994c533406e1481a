"""The loss of the global model on the clients' training data, computed by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fl_lightning import LocalTraining
from fl_lightning.aggregation import DPFedAvg, FedBN, FedNNNN
from fl_lightning.callbacks import FederatedServer, GlobalTrainingLoss
from fl_lightning.client.stragglers import draw_dropouts
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import ClassesPerClient, FreshDraw, MixedNodes, PoissonClients
from tests.callbacks.test_diagnostics import run
from tests.toys import Net

TAG = "train/global_loss"


def by_hand(state, trainer, clients, round_: int = 0) -> float:
    """Return Σ D_i / D · F_i(w), sample by sample in float64."""
    module = Net(batch_norm=True).double().eval()
    module.load_state_dict(state)
    inputs, labels = trainer.datamodule.source.dataset.tensors
    with torch.no_grad():
        losses = functional.cross_entropy(module(inputs.double()), labels, reduction="none").numpy()
    parts = [trainer.datamodule.indices(client, round_) for client in clients]
    sizes = [len(part) for part in parts]
    return float(np.average([losses[part].mean() for part in parts], weights=sizes))


@pytest.mark.parametrize("batch_size", [1, 7, 512])
def test_clients_of_different_sizes_are_weighted_by_their_samples(tmp_path, batch_size):
    rows, keep, trainer = run(tmp_path, callbacks=[GlobalTrainingLoss(batch_size=batch_size)], rounds=2)
    for round_, row in rows.items():
        assert row[TAG] == pytest.approx(by_hand(keep.ends[round_], trainer, range(10)), rel=1e-5)


def test_a_sample_that_two_nodes_hold_counts_twice(tmp_path):
    partition = MixedNodes(["iid", 1, 2, 1], samples_per_node=25)
    rows, keep, trainer = run(tmp_path, callbacks=[GlobalTrainingLoss()], rounds=1, partition=partition, selection=None)
    held = np.concatenate([trainer.datamodule.indices(client) for client in range(4)])
    assert len(np.unique(held)) < len(held)
    assert rows[0][TAG] == pytest.approx(by_hand(keep.ends[0], trainer, range(4)), rel=1e-5)


def test_the_sum_can_be_over_the_clients_of_the_round(tmp_path):
    rows, keep, trainer = run(tmp_path, callbacks=[GlobalTrainingLoss(clients="cohort")], rounds=2)
    for round_, row in rows.items():
        expected = by_hand(keep.ends[round_], trainer, trainer.datamodule.cohort(round_))
        assert row[TAG] == pytest.approx(expected, rel=1e-5)


def test_clients_that_a_round_has_lost_do_not_count(tmp_path):
    server = FederatedServer(client=LocalTraining(dropout=0.5))
    rows, keep, trainer = run(tmp_path, callbacks=[GlobalTrainingLoss(clients="cohort")], rounds=3, server=server)
    lost = 0
    for round_, row in rows.items():
        cohort = trainer.datamodule.cohort(round_)
        gone = draw_dropouts(0.5, trainer.datamodule.seed, round_, cohort)
        lost += len(gone)
        expected = by_hand(keep.ends[round_], trainer, [client for client in cohort if client not in gone])
        assert row[TAG] == pytest.approx(expected, rel=1e-5)
    assert lost > 0


def test_a_round_without_clients_logs_no_loss(tmp_path):
    options = {"server": FederatedServer(DPFedAvg(1.0, 0.0), "uniform"), "selection": PoissonClients(1e-9)}
    rows, _, _ = run(tmp_path, callbacks=[GlobalTrainingLoss(clients="cohort")], rounds=1, module=Net(), **options)
    assert all(TAG not in row for row in rows.values())


def test_clients_that_redraw_are_evaluated_on_the_samples_of_the_round(tmp_path):
    partition = FreshDraw(4, low=1, high=6)
    options = {"partition": partition, "selection": None, "rounds": 2}
    rows, keep, trainer = run(tmp_path, callbacks=[GlobalTrainingLoss()], **options)
    for round_, row in rows.items():
        assert row[TAG] == pytest.approx(by_hand(keep.ends[round_], trainer, range(4), round_), rel=1e-5)


@pytest.mark.parametrize("aggregator", [lambda: FedNNNN(beta=0.7, gamma=0.8), FedBN])
def test_the_served_model_is_evaluated_and_not_what_clients_continue_from(tmp_path, aggregator):
    rows, keep, trainer = run(tmp_path, callbacks=[GlobalTrainingLoss()], aggregator=aggregator(), rounds=2)
    for round_, row in rows.items():
        assert row[TAG] == pytest.approx(by_hand(keep.ends[round_], trainer, range(10)), rel=1e-5)


def seeded(**arguments) -> Net:
    torch.manual_seed(0)
    return Net(**arguments)


def test_two_processes_log_the_same_loss_as_one(tmp_path):
    def logged(name: str, **options) -> list[float]:
        options |= {"module": seeded(batch_norm=True), "callbacks": [GlobalTrainingLoss()], "rounds": 2}
        rows, _, _ = run(tmp_path, name, **options)
        return [row[TAG] for row in rows.values()]

    one, two = logged("one", devices=1), logged("two", devices=2, strategy="ddp_fork")
    assert one == pytest.approx(two, rel=1e-6)


def test_evaluating_changes_nothing_in_the_run(tmp_path):
    watched, _, _ = run(tmp_path, "watched", callbacks=[GlobalTrainingLoss()], module=seeded(dropout=0.3))
    plain, _, _ = run(tmp_path, "plain", callbacks=[], module=seeded(dropout=0.3))
    assert {round_: {tag: row[tag] for tag in row if tag != TAG} for round_, row in watched.items()} == plain


def test_a_loss_far_above_that_of_the_local_steps_shows_that_one_class_clients_disagree(tmp_path):
    server = FederatedServer(client=LocalTraining(epochs=10))
    options = {"partition": ClassesPerClient(4, 1), "selection": None, "server": server, "rounds": 1}
    rows, _, _ = run(tmp_path, callbacks=[GlobalTrainingLoss()], **options)
    assert rows[0][TAG] > 2 * rows[0]["train/loss"]


def test_every_n_rounds_skips_the_others(tmp_path):
    rows, _, _ = run(tmp_path, callbacks=[GlobalTrainingLoss(every_n_rounds=2)], rounds=4)
    assert [TAG in row for row in rows.values()] == [False, True, False, True]


class TwoLosses(Net):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("extra_loss", torch.tensor(2.5))


def test_the_loss_is_chosen_by_its_name(tmp_path):
    rows, _, _ = run(tmp_path, callbacks=[GlobalTrainingLoss(metric="extra_loss")], rounds=1, module=TwoLosses())
    assert rows[0][TAG] == 2.5


@pytest.mark.parametrize(
    ("module", "metric", "message"),
    [
        (
            TwoLosses,
            None,
            "one name with loss in it, but TwoLosses.validation_step logs val_loss, val_accuracy, extra_",
        ),
        (Net, "val/loss", "metric=val/loss, but Net.validation_step logs val_loss, val_accuracy: set metric"),
    ],
)
def test_an_error_lists_the_names_if_the_loss_is_not_among_them(tmp_path, module, metric, message):
    with pytest.raises(MisconfigurationError, match=message):
        run(tmp_path, callbacks=[GlobalTrainingLoss(metric=metric)], rounds=1, module=module())


@pytest.mark.parametrize("arguments", [{"clients": "some"}, {"every_n_rounds": 0}, {"batch_size": 0}])
def test_impossible_arguments_are_refused(arguments):
    (name,) = arguments
    with pytest.raises(MisconfigurationError, match=f"{name}="):
        GlobalTrainingLoss(**arguments)
