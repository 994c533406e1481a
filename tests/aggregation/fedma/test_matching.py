"""Matching against formulas written out entry by entry, against all possible matches, and its laws."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.aggregation.fedma.matching import Process, match, score_matrix

PROCESS = Process(sigma=0.5, sigma0=2.0, gamma=3.0)
SEEDS = st.integers(0, 2**32 - 1)


def slow_score(row, members, births_before, num_clients, process) -> float:
    """Compute the score of a row for an atom with these members; without members, for one more new atom."""
    v, a = row / process.sigma, sum((member / process.sigma for member in members), np.zeros_like(row))
    n, s = len(members), 1 / process.sigma0 + len(members) / process.sigma
    gain = np.linalg.norm(a + v) ** 2 / (s + 1 / process.sigma) - np.linalg.norm(a) ** 2 / s
    if n == 0:
        return gain + 2 * np.log(process.gamma / num_clients) - 2 * np.log(births_before + 1)
    return gain + 2 * np.log(n / (num_clients - n))


def permuted(atoms, count, generator, noise=0.0):
    """Return copies of the atoms in random order: the clients' rows, and the atom of each row."""
    places = [generator.permutation(len(atoms)) for _ in range(count)]
    return [atoms[place] + noise * generator.normal(size=atoms.shape) for place in places], places


def relative_to_the_first(assignments):
    """Number the atoms as the first client does, so that two matches can be compared."""
    order = np.argsort(assignments[0])
    return [order[assignment].tolist() for assignment in assignments]


def mean_of_members(clients, assignments) -> np.ndarray:
    width = 1 + max(int(atoms.max()) for atoms in assignments)
    members = [[rows[atoms == atom] for rows, atoms in zip(clients, assignments, strict=True)] for atom in range(width)]
    return np.array([np.concatenate(rows).mean(axis=0) for rows in members])


def spread(clients, assignments) -> float:
    mean = mean_of_members(clients, assignments)
    return sum(((rows - mean[atoms]) ** 2).sum() for rows, atoms in zip(clients, assignments, strict=True))


def test_scores_agree_with_the_formulas_written_out(generator):
    rows = generator.normal(size=(3, 4))
    members = [[generator.normal(size=4) for _ in range(n)] for n in (1, 3, 2, 4, 1)]
    sums = np.array([sum(group) / PROCESS.sigma for group in members])
    counts = np.array([len(group) for group in members])
    expected = [
        [slow_score(row, group, 0, 5, PROCESS) for group in members]
        + [slow_score(row, [], birth, 5, PROCESS) for birth in range(2)]
        for row in rows
    ]
    np.testing.assert_allclose(score_matrix(rows, sums, counts, 2, 5, PROCESS), expected, rtol=1e-12)


def test_an_atom_that_all_clients_hold_has_a_finite_score():
    scores = score_matrix(np.ones((1, 2)), np.ones((1, 2)), np.array([3]), 0, 3, PROCESS)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("max_width", [None, 4, 5])
def test_the_second_client_gets_the_best_of_all_matches(seed, max_width):
    generator = np.random.default_rng(seed)
    first, second = generator.normal(size=(4, 3)), generator.normal(size=(3, 3))
    process = Process(gamma=0.5)
    births = 3 if max_width is None else max_width - 4

    def total(targets):
        born = 0
        score = 0.0
        for row, target in zip(second, targets, strict=True):
            members = [first[target]] if target < 4 else []
            score += slow_score(row, members, born, 2, process)
            born += target >= 4
        return score

    best = max(permutations(range(4 + births), 3), key=total)
    found = match([first, second], process, generator, sweeps=0, max_width=max_width)
    assert found[0].tolist() == [0, 1, 2, 3]
    assert total(found[1]) == pytest.approx(total(best), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_three_clients_get_the_tightest_of_all_matches(seed):
    generator = np.random.default_rng(seed)
    clients, _ = permuted(generator.normal(size=(4, 6)), 3, generator, noise=0.2)
    every = product([range(4)], permutations(range(4)), permutations(range(4)))
    best = min(every, key=lambda places: spread(clients, [np.array(place) for place in places]))
    found = match(clients, Process(), generator, max_width=4)
    assert relative_to_the_first(found) == [list(place) for place in best]


@given(seed=SEEDS, count=st.integers(1, 6), width=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_permutations_of_the_same_atoms_are_recovered(seed, count, width):
    generator = np.random.default_rng(seed)
    clients, places = permuted(generator.normal(size=(width, 5)), count, generator)
    found = match(clients, Process(), generator, max_width=width)
    assert relative_to_the_first(found) == relative_to_the_first(places)
    np.testing.assert_allclose(mean_of_members(clients, found), clients[0], rtol=1e-12)


def test_a_single_client_keeps_its_order(generator):
    rows = generator.normal(size=(9, 4))
    assert match([rows], Process(), generator)[0].tolist() == list(range(9))


@given(seed=SEEDS, widths=st.lists(st.integers(1, 6), min_size=1, max_size=5), room=st.none() | st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_a_match_is_one_to_one_without_gaps_and_within_its_width(seed, widths, room):
    generator = np.random.default_rng(seed)
    clients = [generator.normal(size=(width, 3)) for width in widths]
    max_width = None if room is None else max(widths) + room
    found = match(clients, Process(), generator, max_width=max_width)
    for atoms, width in zip(found, widths, strict=True):
        assert len(set(atoms.tolist())) == len(atoms) == width
    held = set(np.concatenate(found).tolist())
    assert held == set(range(len(held)))
    assert max_width is None or len(held) <= max_width


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_sweeps_bring_members_closer(seed):
    generator = np.random.default_rng(seed)
    clients = [generator.normal(size=(5, 3)) for _ in range(4)]
    before = match(clients, Process(), generator, sweeps=0, max_width=5)
    after = match(clients, Process(), generator, sweeps=5, max_width=5)
    assert spread(clients, after) <= spread(clients, before) + 1e-9


def test_a_max_width_below_the_widest_client_is_refused(generator):
    clients = [generator.normal(size=(width, 3)) for width in (2, 5)]
    with pytest.raises(ValueError, match="max_width=4, but a client has 5 atoms"):
        match(clients, Process(), generator, max_width=4)


@pytest.mark.parametrize(("gamma", "scale"), [(1, 0.1), (1, 3), (7, 3)])
def test_the_true_number_of_atoms_is_found(gamma, scale, generator):
    clients, _ = permuted(scale * generator.normal(size=(20, 10)), 5, generator, noise=0.01 * scale)
    found = match(clients, Process(gamma=gamma), generator)
    assert len(np.unique(np.concatenate(found))) == 20


def test_small_weights_and_a_large_gamma_create_too_many_atoms(generator):
    clients, _ = permuted(0.1 * generator.normal(size=(20, 10)), 5, generator, noise=0.001)
    found = match(clients, Process(gamma=7), generator)
    assert len(np.unique(np.concatenate(found))) > 20


def test_clients_without_common_units_share_no_atoms():
    rows = 10 * np.eye(6)
    found = match([rows[:3], rows[3:]], Process(), np.random.default_rng(0))
    assert set(found[0].tolist()).isdisjoint(found[1].tolist())


@given(seed=SEEDS, gamma=st.floats(0.01, 100), sigma=st.floats(0.1, 10), sigma0=st.floats(0.1, 10))
@settings(max_examples=25, deadline=None)
def test_the_process_does_not_matter_if_all_clients_have_the_maximum_width(seed, gamma, sigma, sigma0):
    clients = list(np.random.default_rng(seed).normal(size=(4, 6, 5)))
    default, other = (
        match(clients, process, np.random.default_rng(0), max_width=6)
        for process in (Process(), Process(sigma, sigma0, gamma))
    )
    assert all(np.array_equal(one, two) for one, two in zip(default, other, strict=True))
