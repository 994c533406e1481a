from fl_lightning.data.cohorts import CohortSampler


def test_every_rank_gets_its_share_of_the_cohort_and_the_largest_clients_are_spread():
    sizes = [100, 1, 1, 1, 90, 5]
    shares = [
        CohortSampler(lambda _: list(range(6)), lambda client, _: sizes[client], num_replicas=2, rank=rank)
        for rank in range(2)
    ]
    first, second = (next(iter(sampler)) for sampler in shares)
    assert sorted(first + second) == list(range(6))
    assert 0 in first
    assert 4 in second
    idle = CohortSampler(lambda _: [3], lambda client, _: sizes[client], num_replicas=2, rank=1)
    assert list(idle) == [[]]


def test_the_cohort_belongs_to_the_epoch_that_was_set_last():
    sampler = CohortSampler(lambda round_: [round_], lambda client, round_: 1)
    iterator = iter(sampler)
    sampler.set_epoch(7)
    assert list(iterator) == [[7]]


def test_clients_are_spread_by_their_sizes_in_the_current_round():
    sampler = CohortSampler(lambda _: [0, 1, 2], lambda client, round_: [3, 2, 2][client - round_], 2, rank=0)
    shares = []
    for round_ in range(3):
        sampler.set_epoch(round_)
        shares += list(sampler)
    assert shares == [[0], [1], [2]]
