"""Bad clients: who they are, what they send, and that the others are left alone."""

import logging
import math
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fl_lightning import ClientUpdate, LocalTraining
from fl_lightning.attacks import ALittleIsEnough, GaussianNoise, LabelFlip, ScaledUpdate, SignFlip
from fl_lightning.attacks.alie import z_max
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout, snapshot
from fl_lightning.data import IID
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.callbacks.test_server import Keep
from tests.core.test_distributed import on_two_ranks
from tests.toys import Blobs, ConvNet, federate, identical, random_updates

CLIENTS = 10
UPDATE_ATTACKS = {
    "SignFlip": SignFlip(0.3, 2.0),
    "ScaledUpdate": ScaledUpdate(0.3, 5.0),
    "GaussianNoise": GaussianNoise(0.3, 0.1),
    "ALittleIsEnough": ALittleIsEnough(0.3),
}
each_update_attack = pytest.mark.parametrize("attack", UPDATE_ATTACKS.values(), ids=UPDATE_ATTACKS)


def a_round(model, number: int = 0) -> Round:
    return Round(number, None, 7, snapshot(model), num_clients=CLIENTS)


def attacked(attack, model, updates, number: int = 0) -> dict[int, ClientUpdate]:
    sent = attack.apply(updates, a_round(model, number), StateLayout(model))
    return {update.client: update for update in sent}


@given(st.integers(0, 2**32), st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_a_share_of_the_clients_is_bad_and_a_larger_share_includes_a_smaller_one(seed, clients, first, second):
    small, large = sorted([first, second])
    few, many = (SignFlip(share).bad_clients(clients, seed) for share in (small, large))
    assert len(few) == round(small * clients)
    assert few <= many <= set(range(clients))


def test_other_seeds_have_other_bad_clients():
    assert len({SignFlip(0.3).bad_clients(100, seed) for seed in range(5)}) == 5


def test_all_attacks_have_the_same_bad_clients():
    attacks = [*UPDATE_ATTACKS.values(), LabelFlip(0.3, 4)]
    assert len({attack.bad_clients(50, 3) for attack in attacks}) == 1


@each_update_attack
def test_good_clients_and_all_statistics_are_left_alone(attack, generator):
    model = ConvNet()
    updates = random_updates(model, CLIENTS, generator)
    sent = attacked(attack, model, updates)
    bad = attack.bad_clients(CLIENTS, 7)
    assert len(bad) == 3
    for update in updates:
        changed = {name for name in PARAMETERS if not torch.equal(sent[update.client].state[name], update.state[name])}
        assert changed == (set(PARAMETERS) if update.client in bad else set())
        others = [name for name in update.state if name not in PARAMETERS]
        assert all(torch.equal(sent[update.client].state[name], update.state[name]) for name in others)


@pytest.mark.parametrize(("attack", "factor"), [(SignFlip(0.3, 2.0), -2.0), (ScaledUpdate(0.3, 5.0), 5.0)])
def test_flipped_and_scaled_updates_agree_with_numpy(attack, factor, generator):
    model = ConvNet()
    updates = random_updates(model, CLIENTS, generator)
    start = vector(model.state_dict(), PARAMETERS)
    sent = attacked(attack, model, updates)
    for client in attack.bad_clients(CLIENTS, 7):
        expected = start + factor * (vector(updates[client].state, PARAMETERS) - start)
        np.testing.assert_allclose(vector(sent[client].state, PARAMETERS), expected, rtol=1e-5, atol=1e-5)


def test_noise_has_its_standard_deviation_and_differs_between_clients_and_rounds(generator):
    model = torch.nn.Linear(200, 100)
    attack = GaussianNoise(0.3, 0.5)
    start = vector(model.state_dict(), ["weight", "bias"])
    updates = random_updates(model, CLIENTS, generator)
    first, again, later = (attacked(attack, model, updates, number) for number in (0, 0, 1))
    noises = [
        vector(sent[client].state, ["weight", "bias"]) - start
        for sent in (first, later)
        for client in attack.bad_clients(CLIENTS, 7)
    ]
    assert np.std(noises) == pytest.approx(0.5, rel=0.02)
    assert abs(np.corrcoef(noises) - np.eye(6)).max() < 0.05
    assert all(identical(first[client].state, again[client].state) for client in first)


@pytest.mark.parametrize("z", [None, 1.5])
def test_colluding_clients_send_the_papers_vector(z, generator):
    model = ConvNet()
    updates = random_updates(model, CLIENTS, generator)
    attack = ALittleIsEnough(0.4, z)
    bad = attack.bad_clients(CLIENTS, 7)
    rows = np.stack([vector(updates[client].state, PARAMETERS) for client in bad])
    # algorithm 3 with n = 10 and m = 4: s = ⌊10/2 + 1⌋ - 4 = 2, so that (n - m - s) / (n - m) = 4/6
    expected = rows.mean(axis=0) - (norm.ppf(4 / 6) if z is None else z) * rows.std(axis=0)
    sent = attacked(attack, model, updates)
    assert len(sent) == CLIENTS
    for client in bad:
        np.testing.assert_allclose(vector(sent[client].state, PARAMETERS), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("clients", "bad", "covered"),
    [(50, 24, (50 - 24 - 2) / 26), (20, 8, 9 / 12), (20, 1, 0.5), (3, 3, 0.5), (10, 7, 2 / 3)],
)
def test_the_deviation_is_the_papers_quantile_and_never_negative(clients, bad, covered):
    assert z_max(clients, bad) == pytest.approx(norm.ppf(covered), abs=1e-12)


def test_a_bad_client_alone_sends_what_it_trained(generator):
    model = ConvNet()
    updates = random_updates(model, CLIENTS, generator)
    attack = ALittleIsEnough(0.1, z=3.0)
    (bad,) = attack.bad_clients(CLIENTS, 7)
    sent = attacked(attack, model, updates)
    assert identical(sent[bad].state, updates[bad].state)
    assert attack(updates[bad], a_round(model), StateLayout(model)) is updates[bad]


def test_colluding_clients_on_two_ranks_send_what_they_send_in_one_process(tmp_path):
    torch.manual_seed(0)
    model = ConvNet()
    updates = random_updates(model, CLIENTS, np.random.default_rng(0))
    attack = ALittleIsEnough(0.4)
    whole = attacked(attack, model, updates)

    def check(rank):
        bad = attack.bad_clients(CLIENTS, 7)
        for own in (updates[rank::2], [update for update in updates if (update.client in bad) == (rank == 0)]):
            sent = attacked(attack, model, own)
            for client, update in sent.items():
                for name in PARAMETERS:
                    torch.testing.assert_close(update.state[name], whole[client].state[name], rtol=1e-6, atol=1e-6)

    on_two_ranks(check, tmp_path)


class FlippedBlobs(Blobs):
    """The same data with the labels 3 - y."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        inputs, labels = self.dataset.tensors
        self.dataset = torch.utils.data.TensorDataset(inputs, 3 - labels)


def federate_with(callbacks=(), source=None, execution="trainer"):
    torch.manual_seed(0)
    keep = Keep()
    client = LocalTraining(callbacks=list(callbacks), execution=execution)
    server = FederatedServer(client=client)
    federate(source=source, partition=IID(6), server=server, rounds=1, callbacks=[keep])
    (updates,) = keep.updates
    return {update.client: update.state for update, _ in updates}


@pytest.mark.parametrize("execution", ["trainer", "vectorized"])
def test_bad_clients_train_on_flipped_labels_and_the_others_on_true_ones(execution):
    attack = LabelFlip(0.5, classes=4)
    found = federate_with([attack], execution=execution)
    honest, flipped = federate_with(execution=execution), federate_with(source=FlippedBlobs(), execution=execution)
    bad = attack.bad_clients(6, 0)
    assert len(bad) == 3
    for client, state in found.items():
        for name, value in state.items():
            expected = (flipped if client in bad else honest)[client][name]
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


Pair = namedtuple("Pair", "inputs labels")


@pytest.mark.parametrize(
    ("label", "batch", "flipped"),
    [
        (1, [torch.zeros(2), torch.tensor([0, 3])], lambda batch: batch[1]),
        (-1, (torch.zeros(2), torch.tensor([0, 3])), lambda batch: batch[1]),
        (1, Pair(torch.zeros(2), torch.tensor([0, 3])), lambda batch: batch.labels),
        ("y", {"x": torch.zeros(2), "y": torch.tensor([0, 3])}, lambda batch: batch["y"]),
    ],
)
def test_the_labels_of_any_batch_can_be_flipped(label, batch, flipped):
    attack = LabelFlip(1.0, 4, label)
    attack.client, attack.round = 0, a_round(ConvNet())
    changed = attack.on_batch(batch)
    assert type(changed) is type(batch)
    assert flipped(changed).tolist() == [3, 0]
    assert flipped(batch).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("label", "batch", "message"),
    [
        (2, [torch.zeros(2), torch.tensor([0, 3])], "label=2, but a batch"),
        (0, [torch.zeros(2), torch.tensor([0, 3])], "label=0, but a batch"),
        ("y", [torch.zeros(2), torch.tensor([0, 3])], "label='y', but a batch"),
        (1, [torch.zeros(2), torch.tensor([0, 4])], "classes=4, but a batch has the label 4: .* to 5 or more"),
    ],
)
def test_labels_that_cannot_be_flipped_are_refused(label, batch, message):
    attack = LabelFlip(1.0, 4, label)
    attack.client, attack.round = 0, a_round(ConvNet())
    with pytest.raises(MisconfigurationError, match=message):
        attack.on_batch(batch)


def test_a_missing_label_is_noticed_before_the_first_bad_client_trains():
    attack = LabelFlip(0.0, 4, "y")
    attack.client, attack.round = 0, a_round(ConvNet())
    with pytest.raises(MisconfigurationError, match="label='y', but a batch"):
        attack.on_batch([torch.zeros(2), torch.tensor([0, 3])])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SignFlip(1.1), "share=1.1"),
        (lambda: LabelFlip(math.nan, 4), "share=nan"),
        (lambda: SignFlip(0.1, 0.0), "scale=0.0"),
        (lambda: ScaledUpdate(0.1, math.inf), "scale=inf"),
        (lambda: GaussianNoise(0.1, math.nan), "std=nan"),
        (lambda: ALittleIsEnough(0.1, -1.0), "z=-1.0"),
        (lambda: ALittleIsEnough(0.1, math.inf), "z=inf"),
        (lambda: LabelFlip(0.1, 1), "classes=1"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


def test_a_round_that_does_not_know_the_number_of_clients_is_refused(generator):
    model = ConvNet()
    (update,) = random_updates(model, 1, generator)
    with pytest.raises(MisconfigurationError, match="set num_clients of Round"):
        SignFlip(0.5)(update, Round(0, None, 7, snapshot(model)), StateLayout(model))


def test_a_run_says_which_clients_are_bad(caplog):
    with caplog.at_level(logging.INFO):
        federate(
            server=FederatedServer(transforms=[SignFlip(0.5)], client=LocalTraining(callbacks=[LabelFlip(0.0, 4)]))
        )
    bad = ", ".join(map(str, sorted(SignFlip(0.5).bad_clients(4, 0))))
    assert f"SignFlip: 2 of 4 clients are bad (clients {bad})" in caplog.text
    assert "LabelFlip: 0 of 4 clients are bad (no client)" in caplog.text


def test_a_long_list_of_bad_clients_is_cut():
    assert SignFlip(1.0).describe(30, 0).endswith("18, 19, ...)")
