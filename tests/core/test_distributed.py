from collections import Counter

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fl_lightning.aggregation import FedAvg, FedNNNN, Scaffold
from fl_lightning.core.distributed import gather_messages, gather_objects, max_over_ranks, sum_over_ranks
from fl_lightning.core.round import Round
from fl_lightning.core.state import snapshot
from tests.aggregation.test_fedavg import GatheredMean
from tests.toys import ConvNet, identical, random_updates

CPU = torch.device("cpu")


def on_two_ranks(check, tmp_path) -> None:
    """Call ``check(rank)`` in two forked processes, and fail if it fails in one of them."""
    address = f"file://{tmp_path / 'rendezvous'}"
    context = torch.multiprocessing.get_context("fork")
    processes = [context.Process(target=_run, args=(check, rank, address)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]


def _run(check, rank: int, address: str) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    check(rank)
    dist.destroy_process_group()


def count_collectives() -> Counter:
    """Count the calls of torch.distributed's collectives from now on, by name."""
    calls: Counter = Counter()

    def counting(name, function):
        def counted(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return counted

    for name in ("all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list"):
        setattr(dist, name, counting(name, getattr(dist, name)))
    return calls


def messages_of(rank: int) -> list[tuple[object, dict[str, torch.Tensor]]]:
    """Return what a rank sends: nothing at rank zero, then types of every size, at odd positions, and empty tensors."""
    if rank == 0:
        return []
    return [
        ("ü", {"flag": torch.tensor([True, False, True]), "weights": torch.arange(6.0).view(2, 3)}),
        (None, {}),
        (
            {"rate": 0.1, "steps": None},
            {
                "count": torch.tensor(7),
                "nothing": torch.zeros(0, 4),
                "half": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
                "turned": torch.arange(6.0).view(2, 3).T,
                "every second": torch.arange(6.0)[::2],
                "repeated": torch.ones(1).expand(3),
                "conjugate": torch.tensor([1 + 2j]).conj(),
            },
        ),
    ]


def test_every_rank_gets_the_messages_of_all_ranks(tmp_path):
    def check(rank):
        gathered = gather_messages(messages_of(rank), CPU)
        expected = messages_of(0) + messages_of(1)
        assert [note for note, _ in gathered] == [note for note, _ in expected]
        assert all(identical(got, sent) for (_, got), (_, sent) in zip(gathered, expected, strict=True))

    on_two_ranks(check, tmp_path)


@pytest.mark.parametrize(("numbers", "exchanges"), [(0, 1), (8, 1), (100_000, 2)])
def test_short_messages_are_gathered_in_one_exchange_and_long_ones_in_two(tmp_path, numbers, exchanges):
    def check(rank):
        calls = count_collectives()
        own = [("note", {"values": torch.full((numbers,), float(rank))})] if numbers else []
        gathered = gather_messages(own, CPU)
        assert calls == {"all_gather": exchanges}
        assert [int(tensors["values"].sum()) for _, tensors in gathered] == ([0, numbers] if numbers else [])

    on_two_ranks(check, tmp_path)


@pytest.mark.parametrize("length", [0, 10, 100_000])
def test_objects_of_any_size_are_gathered_in_the_order_of_ranks(tmp_path, length):
    def check(rank):
        own = [{"rank": rank, "text": length * "ü", "many": [torch.ones(2)]}] * (1 + rank)
        gathered = gather_objects(own, CPU)
        assert [item["rank"] for item in gathered] == [0, 1, 1]
        assert all(len(item["text"]) == length for item in gathered)

    on_two_ranks(check, tmp_path)


@pytest.mark.parametrize("messages", [[], [("a", {"a": torch.ones(2)})]])
def test_a_single_process_keeps_its_messages(messages):
    assert gather_messages(messages, CPU) == messages


def test_sums_and_maxima_over_ranks_keep_shapes_and_types(tmp_path):
    def check(rank):
        exact, matrix = torch.tensor(rank + 0.5, dtype=torch.float64), torch.full((2, 3), rank + 1.0)
        turned, empty = torch.arange(6.0).view(2, 3).T, torch.zeros(0)
        sum_over_ranks(exact, matrix, turned, empty)
        assert exact == 2.0
        assert torch.equal(matrix, torch.full((2, 3), 3.0))
        assert torch.equal(turned, 2 * torch.arange(6.0).view(2, 3).T)
        largest = torch.tensor([rank, -rank])
        max_over_ranks(largest)
        assert largest.tolist() == [1, 0]

    on_two_ranks(check, tmp_path)


def reduced_with(aggregator, tmp_path, expected: dict[str, int]) -> None:
    """Check with which collectives a round of three clients on two ranks is reduced."""
    torch.manual_seed(0)
    model = ConvNet()

    def check(rank):
        updates = random_updates(model, 3, np.random.default_rng(0))
        aggregator.begin_round(model, Round(0, None, 0, snapshot(model)))
        for update in updates[rank::2]:
            update.state = {**update.state, "frozen": model.frozen, "flag": model.flag}
            aggregator.receive(update, update.num_samples)
        calls = count_collectives()
        aggregator.reduce()
        aggregator.finish_round()
        assert calls == expected

    on_two_ranks(check, tmp_path)


@pytest.mark.parametrize("make", [FedAvg, Scaffold, lambda: FedNNNN(beta=0.7, gamma=0.8, granularity="layer")])
def test_a_streaming_aggregator_reduces_one_buffer_of_sums_and_one_of_counters(make, tmp_path):
    # the third is a few numbers, which tell whether a client changed a frozen entry
    reduced_with(make(), tmp_path, {"all_reduce": 3})


def test_a_gathered_aggregator_exchanges_its_updates_in_one_buffer_without_pickling(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_lightning.core.distributed.pickle", None)
    reduced_with(GatheredMean(), tmp_path, {"all_gather": 1, "all_reduce": 1})
