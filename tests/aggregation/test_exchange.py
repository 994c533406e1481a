"""What the ranks of a distributed run exchange to aggregate the clients of a round."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from fl_lightning.aggregation import Aggregate, Aggregator, FedAdp, FedAvgLastFC, FedDNA, FedNS
from fl_lightning.core.round import Round
from fl_lightning.core.state import snapshot
from tests.aggregation.test_fedavg import GatheredMean
from tests.core.test_distributed import on_two_ranks
from tests.toys import ConvNet, random_updates


class Wide(nn.Module):
    """Has few nodes with many weights each."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(400, 50)
        self.norm = nn.BatchNorm1d(50)
        self.head = nn.Linear(50, 4)


#: the number of parameters of Wide
SIZE = 400 * 50 + 50 + 2 * 50 + 50 * 4 + 4
#: aggregators that leave updates on their ranks, and how many vectors as long as an update they sum over the ranks
SPLIT = {"FedAvgLastFC": (FedAvgLastFC, 1), "FedNS": (FedNS, 1), "FedAdp": (FedAdp, 2), "FedDNA": (FedDNA, 1)}


def count_bytes() -> list[int]:
    """Return a list to which every collective from now on adds the bytes that this rank passes to it."""
    sent: list[int] = []
    reduce, gather = dist.all_reduce, dist.all_gather

    def all_reduce(tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return reduce(tensor, *args, **kwargs)

    def all_gather(tensors, tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return gather(tensors, tensor, *args, **kwargs)

    dist.all_reduce, dist.all_gather = all_reduce, all_gather
    return sent


def receive(aggregator: Aggregator, model: nn.Module, updates) -> None:
    aggregator.begin_round(model, Round(0, None, 0, snapshot(model)))
    for update in updates:
        # frozen entries are unchanged, so that they are not exchanged
        update.state |= {name: value for name, value in model.state_dict().items() if name in ("frozen", "flag")}
        aggregator.receive(update, update.num_samples)


def finish(aggregator: Aggregator) -> Aggregate:
    aggregator.reduce()
    return aggregator.finish_round()


def exchanged_bytes(make, clients: int, folder) -> int:
    """Return how many bytes rank zero sends in a round."""
    torch.manual_seed(0)
    model = Wide()
    updates = random_updates(model, clients, np.random.default_rng(0))
    result = torch.multiprocessing.get_context("fork").SimpleQueue()

    def check(rank):
        aggregator = make()
        receive(aggregator, model, updates[rank::2])
        sent = count_bytes()
        finish(aggregator)
        if rank == 0:
            result.put(sum(sent))

    folder.mkdir()
    on_two_ranks(check, folder)
    return result.get()


@pytest.mark.parametrize("aggregator", SPLIT)
def test_a_split_aggregator_exchanges_sums_and_little_per_client(aggregator, tmp_path):
    make, vectors = SPLIT[aggregator]
    few, many = (exchanged_bytes(make, clients, tmp_path / str(clients)) for clients in (3, 23))
    # Sums are in float64. The first part of a message takes 8 kB, however short the message is.
    assert few - 8192 == pytest.approx(8 * SIZE * vectors, rel=0.05)
    assert many - few < 20 * 4 * SIZE / 50  # 20 further updates would be 20 * 4 * SIZE bytes on both ranks together


def test_a_gathered_aggregator_exchanges_every_update(tmp_path):
    few, many = (exchanged_bytes(GatheredMean, clients, tmp_path / str(clients)) for clients in (3, 23))
    assert many - few >= 10 * 4 * SIZE  # rank zero has 12 clients instead of 2


@pytest.mark.parametrize("aggregator", [*SPLIT, "GatheredMean"])
@pytest.mark.parametrize("clients", [1, 7])
def test_clients_on_two_ranks_aggregate_like_those_of_one_process(aggregator, clients, tmp_path):
    make = GatheredMean if aggregator == "GatheredMean" else SPLIT[aggregator][0]
    torch.manual_seed(0)
    model = ConvNet()
    updates = random_updates(model, clients, np.random.default_rng(0))
    one = make()
    receive(one, model, updates)
    whole = finish(one)

    def check(rank):
        aggregator = make()
        receive(aggregator, model, updates[rank::2])
        shared = finish(aggregator)
        for name in whole.state:
            torch.testing.assert_close(shared.state[name], whole.state[name], rtol=1e-6, atol=1e-6)
        first, second = ({tag: float(value) for tag, value in each.metrics.items()} for each in (whole, shared))
        assert first == pytest.approx(second, rel=1e-6, abs=1e-6)

    on_two_ranks(check, tmp_path)


def test_a_rank_without_clients_knows_those_of_the_other(tmp_path):
    model = ConvNet()
    [update] = random_updates(model, 1, np.random.default_rng(0))

    def check(rank):
        aggregator = FedNS()
        receive(aggregator, model, [update] if rank == 0 else [])
        aggregator.reduce()
        [participant] = aggregator.cohort
        assert participant.weight == update.num_samples
        assert torch.equal(participant.update.class_counts, update.class_counts)
        rows = [torch.tensor([7.0, 8.0])] if rank == 0 else []
        assert aggregator.rows_of_all(rows, width=2).tolist() == [[7.0, 8.0]]

    on_two_ranks(check, tmp_path)


def test_the_rows_of_all_clients_are_in_the_order_of_their_numbers(tmp_path):
    model = ConvNet()
    updates = random_updates(model, 5, np.random.default_rng(0))

    def check(rank):
        aggregator = FedNS()
        receive(aggregator, model, updates[rank::2])
        aggregator.reduce()
        own = torch.arange(5.0)[rank::2]
        assert aggregator.own(torch.arange(5.0)).tolist() == own.tolist()
        assert aggregator.rows_of_all(own[:, None].unbind(), width=1).flatten().tolist() == [0, 1, 2, 3, 4]

    on_two_ranks(check, tmp_path)
