"""Compressed uploads: the largest entries with error feedback, and random levels without bias."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning import LocalTraining
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout, snapshot
from fl_lightning.data import IID, RandomClients
from fl_lightning.transforms import QSGD, BernoulliMask, TopK
from tests.aggregation.test_fednnnn import PARAMETERS, vector
from tests.callbacks.test_server import Keep
from tests.toys import ConvNet, Net, federate, identical, random_updates

SIZE = sum(value.numel() for name, value in ConvNet().named_parameters() if name in PARAMETERS)


def sent_by(transform, model, update, unsent=None, number: int = 0):
    """Return the update as the server receives it, and its difference from the start."""
    memory = None if unsent is None else {"unsent": torch.tensor(unsent, dtype=torch.float32)}
    round_ = Round(number, None, 0, snapshot(model), memory=lambda writer, client: memory)
    sent = transform(update, round_, StateLayout(model))
    return sent, vector(sent.state, PARAMETERS) - vector(model.state_dict(), PARAMETERS)


@given(seed=st.integers(0, 2**32 - 1), fraction=st.floats(0.001, 1.0))
@settings(max_examples=25, deadline=None)
def test_the_largest_entries_are_sent_and_the_others_are_remembered(seed, fraction):
    generator = np.random.default_rng(seed)
    model = ConvNet()
    (update,) = random_updates(model, 1, generator)
    before = generator.normal(size=SIZE).astype(np.float32)
    wanted = vector(update.state, PARAMETERS) - vector(model.state_dict(), PARAMETERS) + before
    sent, difference = sent_by(TopK(fraction), model, update, before)
    kept = np.abs(difference) > 1e-5
    k = max(round(fraction * SIZE), 1)
    assert abs(kept.sum() - k) <= 1
    np.testing.assert_allclose(difference[kept], wanted[kept], rtol=1e-4, atol=1e-5)
    if not kept.all():
        assert np.abs(wanted[kept]).min() >= np.abs(wanted[~kept]).max() - 1e-4
    # nothing is lost: what is sent and what is remembered add up to what the client wanted to send
    remembered = sent.memory["TopK"]["unsent"].numpy()
    np.testing.assert_allclose(difference + remembered, wanted, rtol=1e-4, atol=1e-5)
    others = [name for name in update.state if name not in PARAMETERS]
    assert all(torch.equal(sent.state[name], update.state[name]) for name in others)


def test_an_entry_that_is_sent_takes_its_value_and_its_position(generator):
    model = ConvNet()
    (update,) = random_updates(model, 1, generator)
    sparse, _ = sent_by(TopK(0.2), model, update)
    assert sparse.num_bytes == update.num_bytes - 4 * SIZE + 8 * 25  # SIZE is 125
    whole, difference = sent_by(TopK(1.0), model, update)
    assert whole.num_bytes == update.num_bytes  # as a whole, without positions
    expected = vector(update.state, PARAMETERS) - vector(model.state_dict(), PARAMETERS)
    np.testing.assert_allclose(difference, expected, rtol=1e-5, atol=1e-6)


def with_top_k(rounds, keep=None, **options):
    torch.manual_seed(0)
    server = FederatedServer(transforms=[TopK(0.05)], client=LocalTraining())
    callbacks = [keep] if keep is not None else []
    selection = options.pop("selection", RandomClients(count=2))
    return federate(
        Net(), partition=IID(3), selection=selection, server=server, rounds=rounds, callbacks=callbacks, **options
    )


def test_what_a_client_did_not_send_comes_with_its_next_round_whenever_that_is():
    received = Keep()
    with_top_k(4, received)
    store: dict[int, np.ndarray] = {}
    names = [name for name, _ in Net().named_parameters()]
    for number, updates in enumerate(received.updates):
        start = vector(received.starts[number], names)
        for update, _ in updates:
            sent = vector(update.state, names) - start
            rest = update.memory["TopK"]["unsent"].numpy()
            trained = sent + rest - store.get(update.client, 0.0)  # Δ_k of this round alone
            assert np.linalg.norm(trained) > 0
            assert (np.abs(sent) > 1e-7).sum() <= round(0.05 * len(sent)) + 1
            store[update.client] = rest
    assert len(store) == 3


def test_the_server_receives_the_largest_entries_of_the_uncompressed_update():
    """In the first round, that is the largest entries of what the clients send without compression."""
    keep, plain = Keep(), Keep()
    with_top_k(1, keep)
    torch.manual_seed(0)
    federate(Net(), partition=IID(3), selection=RandomClients(count=2), rounds=1, callbacks=[plain])
    names = [name for name, _ in Net().named_parameters()]
    start = vector(plain.starts[0], names)
    for (sent, _), (trained, _) in zip(keep.updates[0], plain.updates[0], strict=True):
        delta = vector(trained.state, names) - start
        threshold = np.sort(np.abs(delta))[-round(0.05 * len(delta))]
        expected = np.where(np.abs(delta) >= threshold, delta, 0.0)
        np.testing.assert_allclose(vector(sent.state, names) - start, expected, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_remembers_what_was_not_sent(tmp_path):
    whole, _ = with_top_k(4)
    _, begun = with_top_k(2)
    begun.save_checkpoint(tmp_path / "begun.ckpt")
    resumed, _ = with_top_k(4, ckpt_path=tmp_path / "begun.ckpt")
    assert identical(dict(whole.state_dict()), dict(resumed.state_dict()))


def test_two_processes_remember_the_same_as_one():
    one, _ = with_top_k(3, devices=1)
    two, _ = with_top_k(3, devices=2, strategy="ddp_fork")
    for name, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], value, rtol=1e-6, atol=1e-6)


def draws(transform: QSGD, values: np.ndarray, count: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(0)
    return np.stack([transform.quantise(torch.tensor(values), generator).numpy() for _ in range(count)])


@given(seed=st.integers(0, 2**32 - 1), levels=st.integers(1, 20), bucket=st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_levels_are_unbiased_and_their_variance_is_within_the_papers_bound(seed, levels, bucket):
    values = np.random.default_rng(seed).normal(size=40)
    count = 400
    drawn = draws(QSGD(levels, bucket), values, count)
    for begin in range(0, 40, bucket):
        v, q = values[begin : begin + bucket], drawn[:, begin : begin + bucket]
        norm = np.sqrt((v**2).sum())
        places = q / norm * levels
        np.testing.assert_allclose(places, np.round(places), atol=1e-6)  # multiples of ‖v‖ / s
        # each entry is one of two neighbouring levels: its standard deviation is at most half of ‖v‖ / s
        assert np.abs(q.mean(axis=0) - v).max() <= 6 * 0.5 * norm / levels / math.sqrt(count)
        bound = min(len(v) / levels**2, math.sqrt(len(v)) / levels) * norm**2  # lemma 3.1
        assert ((q - v) ** 2).sum(axis=1).mean() <= bound * 1.2 + 1e-12


def test_a_vector_of_zeros_stays_zero():
    assert not draws(QSGD(), np.zeros(600), 1).any()


def test_a_quantised_update_takes_the_bits_of_its_levels_and_a_norm_per_bucket(generator):
    model = ConvNet()
    (update,) = random_updates(model, 1, generator)
    sent, _ = sent_by(QSGD(levels=7, bucket=32), model, update)
    # 15 values need 4 bits
    assert sent.num_bytes == update.num_bytes - 4 * SIZE + math.ceil(SIZE / 2) + 4 * math.ceil(SIZE / 32)
    others = [name for name in update.state if name not in PARAMETERS]
    assert all(torch.equal(sent.state[name], update.state[name]) for name in others)


def test_levels_differ_between_rounds_and_clients_and_follow_from_the_seed(generator):
    model = ConvNet()
    first, second = random_updates(model, 2, generator)
    second.state = first.state
    results = [sent_by(QSGD(), model, each, number=number)[1] for each in (first, second) for number in (0, 1)]
    again = sent_by(QSGD(), model, first)[1]
    assert np.array_equal(results[0], again)
    assert len({result.tobytes() for result in results}) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0.0), "fraction=0.0"),
        (lambda: TopK(math.nan), "fraction=nan"),
        (lambda: QSGD(0), "levels=0"),
        (lambda: QSGD(2**15), "levels=32768"),
        (lambda: QSGD(7, 0), "bucket=0"),
        (lambda: FederatedServer(transforms=[TopK(0.1), BernoulliMask(0.5)]), "TopK and BernoulliMask.*keep one"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()
