import pytest
import torch

from fl_lightning.core.distributed import gather_states
from tests.toys import identical

CPU = torch.device("cpu")


def states_of(rank: int) -> list[dict[str, torch.Tensor]]:
    """Return what a rank sends: nothing at rank zero, then types of every size, at odd positions, and empty tensors."""
    if rank == 0:
        return []
    return [
        {"flag": torch.tensor([True, False, True]), "weights": torch.arange(6.0).view(2, 3)},
        {},
        {
            "count": torch.tensor(7),
            "nothing": torch.zeros(0, 4),
            "half": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
        },
    ]


def _rank(rank: int, address: str, results) -> None:
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    gathered = gather_states(states_of(rank), CPU)
    expected = states_of(0) + states_of(1)
    results.put(len(gathered) == len(expected) and all(map(identical, gathered, expected)))
    torch.distributed.destroy_process_group()


def test_every_rank_gets_the_tensors_of_all_ranks(tmp_path):
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    address = f"file://{tmp_path / 'rendezvous'}"
    processes = [context.Process(target=_rank, args=(rank, address, results)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert [results.get(), results.get()] == [True, True]


@pytest.mark.parametrize("states", [[], [{"a": torch.ones(2)}]])
def test_a_single_process_keeps_its_tensors(states):
    assert gather_states(states, CPU) == states
