import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.data import IID, ByList, FreshDraw, RandomClients
from fl_lightning.data.ownership.counts import Ownership
from fl_lightning.data.ownership.picture import partition_figure, partition_image
from fl_lightning.data.ownership.table import partition_table
from tests.toys import Blobs


def ownership(partition, samples: int = 120, **kwargs) -> Ownership:
    data = FederatedDataModule(Blobs(samples), partition=partition, **kwargs)
    data.setup("fit")
    return Ownership.of(data)


def made_up(clients: int, classes: int, sizes: np.ndarray | None = None) -> Ownership:
    counts = np.random.default_rng(0).integers(0, 90, (clients, classes))
    sizes = counts.sum(axis=1) if sizes is None else sizes
    return Ownership("Data", "Partition", np.arange(clients), sizes, counts, 10**6, 10**6, 0)


def test_ownership_counts_the_samples_of_each_client_and_class():
    found = ownership(ByList([[0, 1, 4], [4, 5], [3]]), samples=8)  # the label of sample i is i mod 4
    assert found.counts.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]]
    assert found.sizes.tolist() == [3, 2, 1]
    assert (found.num_samples, found.num_owned, found.num_shared) == (8, 5, 1)


def test_the_first_cohort_is_shown_if_clients_redraw_their_samples():
    found = ownership(FreshDraw(1000, 2, 2), selection=RandomClients(count=3), seed=1)
    assert found.clients.tolist() == RandomClients(count=3).cohort(1000, seed=1, round=0)
    assert found.counts.tolist() == [[2, 2, 2, 2]] * 3
    assert found.partition.endswith("redrawn every round (showing round 1)")


def test_data_without_classes_has_only_sizes():
    data = FederatedDataModule([TensorDataset(torch.zeros(n, 2), torch.zeros(n)) for n in (3, 5)])
    data.setup("fit")
    found = Ownership.of(data)
    assert found.counts is None
    assert partition_table(found, 80).splitlines()[:3] == [
        "ClientDatasets, 8 samples",
        "ready-made, seed 0",
        "",
    ]
    assert partition_image(found).shape == (600, 1000, 3)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("clients", "classes"), [(3, 4), (30, 200), (5000, 10)])
def test_no_line_of_the_table_is_wider_than_the_terminal(width, clients, classes):
    lines = partition_table(made_up(clients, classes), width).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 40


def test_many_clients_are_summarised_by_quantiles():
    rows = {}
    for line in partition_table(made_up(101, 2, sizes=np.arange(101)), 80).splitlines():
        name, *cells = line.replace("25 %", "25%").replace("75 %", "75%").split() or [""]
        rows[name] = cells
    assert [rows[name][0] for name in ("min", "25%", "median", "75%", "max")] == ["0", "25", "50", "75", "100"]
    assert rows["total"][0] == "5050"
    assert {"0", "9", "96", "100"} <= rows.keys()
    assert "50" not in rows


@pytest.mark.parametrize(
    ("clients", "classes", "kind"), [(20, 10, "bubbles"), (20, 200, "map"), (100, 10, "map"), (3000, 1, "map")]
)
def test_few_clients_are_drawn_as_bubbles_and_many_as_a_map(clients, classes, kind):
    figure = partition_figure(made_up(clients, classes))
    assert any(axes.images for axes in figure.axes) == (kind == "map")
    assert any(axes.collections and axes.get_ylabel() == "class" for axes in figure.axes) == (kind == "bubbles")


def test_the_areas_of_the_bubbles_are_proportional_to_the_counts():
    found = ownership(IID(5))
    (bubbles, *_) = (axes.collections[0] for axes in partition_figure(found).axes if axes.get_ylabel() == "class")
    clients, classes = bubbles.get_offsets().astype(int).T
    areas = bubbles.get_sizes()
    assert areas / areas.max() == pytest.approx(found.counts[clients, classes] / found.counts.max())
