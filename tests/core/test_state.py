import pytest
import torch
from torch import nn

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.state import StateLayout
from tests.toys import ConvNet, identical, random_state


def test_the_parts_of_a_state_are_distinguished():
    layout = StateLayout(ConvNet())
    assert layout.parameters == [
        *("conv.weight", "conv.bias", "norm.weight", "norm.bias"),
        *("hidden.weight", "hidden.bias", "head.weight", "head.bias"),
    ]
    assert layout.statistics == ["norm.running_mean", "norm.running_var"]
    assert layout.counters == ["norm.num_batches_tracked"]


def test_unflatten_undoes_flatten_and_keeps_the_rest(generator):
    model = ConvNet()
    layout = StateLayout(model)
    state = random_state(model, generator)
    back = layout.unflatten(layout.flatten(state, dtype=torch.float64), like=model.state_dict())
    changed = {name: value for name, value in state.items() if name not in ("frozen", "flag")}
    assert identical({name: back[name] for name in changed}, changed)
    assert torch.equal(back["frozen"], model.frozen)
    assert back["flag"].item() is True


def test_tied_weights_are_counted_once_and_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    layout = StateLayout(model)
    flat = layout.flatten(model.state_dict())
    assert flat.parameters.numel() == 9 + 3 + 3
    state = layout.unflatten(flat, like=model.state_dict())
    assert state["1.weight"] is state["0.weight"]


def test_a_model_without_buffers_has_empty_statistics():
    model = nn.Linear(2, 2)
    flat = StateLayout(model).flatten(model.state_dict())
    assert flat.statistics.numel() == flat.counters.numel() == 0


def test_a_complex_parameter_is_refused():
    model = nn.Linear(2, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(MisconfigurationError, match="phase is complex"):
        StateLayout(model)
