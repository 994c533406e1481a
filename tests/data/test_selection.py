import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.data import IID, AllClients, FederatedDataModule, PoissonClients, RandomClients, SequentialClients
from tests.toys import Blobs


def test_all_clients_take_part():
    assert AllClients().cohort(4, seed=0, round=9) == [0, 1, 2, 3]


@given(clients=st.integers(1, 200), fraction=st.floats(0.001, 1.0), round_=st.integers(0, 1000))
def test_a_fraction_selects_the_rounded_number_of_clients_but_at_least_one(clients, fraction, round_):
    cohort = RandomClients(fraction=fraction).cohort(clients, seed=3, round=round_)
    assert len(cohort) == max(round(fraction * clients), 1)
    assert len(set(cohort)) == len(cohort)
    assert set(cohort) <= set(range(clients))


def test_random_cohorts_depend_only_on_seed_and_round():
    select = RandomClients(count=5).cohort
    assert select(50, 1, 7) == RandomClients(count=5).cohort(50, 1, 7)
    assert select(50, 1, 7) != select(50, 1, 8)
    assert select(50, 1, 7) != select(50, 2, 7)


def test_random_selection_is_fair():
    counts = np.zeros(10)
    for round_ in range(2000):
        counts[RandomClients(count=3).cohort(10, 0, round_)] += 1
    # binomial(2000, 0.3): standard deviation 20.5
    assert np.abs(counts - 600).max() < 5 * 20.5


@given(clients=st.integers(1, 30), data=st.data(), rounds=st.integers(1, 60))
def test_in_a_sequential_selection_all_clients_take_part_equally_often(clients, data, rounds):
    count = data.draw(st.integers(1, clients))
    counts = np.zeros(clients, dtype=int)
    for round_ in range(rounds):
        cohort = SequentialClients(count=count).cohort(clients, 0, round_)
        assert len(set(cohort)) == count
        counts[cohort] += 1
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomClients(fraction=0.0), r"fraction=0.0.*\(0, 1\]"),
        (lambda: RandomClients(fraction=1.2), r"fraction=1.2.*\(0, 1\]"),
        (lambda: RandomClients(count=0), "count=0"),
        (lambda: RandomClients(), "set one of them"),
        (
            lambda: PoissonClients(0.0),
            r"rate=0.0, but it is a probability: set data.selection.init_args.rate in \(0, 1\]",
        ),
        (lambda: PoissonClients(float("nan")), "rate=nan is not a finite number"),
        (lambda: SequentialClients(fraction=0.5, count=3), "set one of them"),
        (lambda: SequentialClients(count=6).cohort(5, 0, 0), "count=6, but there are 5 clients"),
    ],
)
def test_bad_selections_are_refused(make, message):
    with pytest.raises(MisconfigurationError, match=message):
        make()


def test_a_batch_can_be_tried_although_the_first_round_has_no_clients():
    data = FederatedDataModule(Blobs(), IID(10), PoissonClients(1e-9))
    data.setup("fit")
    assert data.cohort(0) == []
    assert len(list(data.trial_loader(4))) == 1
