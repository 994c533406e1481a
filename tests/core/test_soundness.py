import pytest
import torch
from torch import nn

from fl_lightning import ClientUpdate
from fl_lightning.core.soundness import SoundnessCheck, first_outsized
from fl_lightning.core.state import StateLayout, snapshot
from tests.toys import ConvNet


class Masked(ConvNet):
    """Has a mask of -inf, as transformers do, and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))
        self.tied = self.head
        self.empty = nn.Parameter(torch.zeros(0))


def check(changes=None, model=None, without=(), wait=True, bounded=False, **fields):
    model = model or Masked()
    start = snapshot(model)
    state = {name: value.clone() for name, value in start.items() if name not in without} | (changes or {})
    sound = SoundnessCheck(StateLayout(model), start, {"steps": torch.Size()}, wait, bounded)
    return sound(ClientUpdate(**{"client": 4, "state": state, "num_samples": 3, **fields})), sound


def with_one(value: float, like: torch.Tensor) -> torch.Tensor:
    changed = like.detach().clone()
    changed.view(-1)[-1] = value
    return changed


def test_an_update_with_the_models_own_state_is_sound():
    assert check(metrics={"loss": torch.tensor(1.0)}, extras={"steps": torch.tensor(3)})[0] is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["conv.weight", "norm.running_var", "frozen"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_single_value_that_is_not_finite_is_found(value, name, dtype):
    spoilt = with_one(value, Masked().state_dict()[name]).to(dtype)
    lost, _ = check({name: spoilt})
    assert (lost.client, lost.reason, lost.planned) == (4, f"{name} is not finite", False)


def test_large_values_are_finite():
    largest = torch.full((4, 5), torch.finfo(torch.float32).max)
    assert check({"head.weight": largest, "tied.weight": -largest})[0] is None


def test_numbers_that_overflow_when_they_are_squared_are_unsound_if_clients_may_be_dropped():
    lost, _ = check({"head.weight": with_one(-2e19, torch.zeros(4, 5))}, bounded=True)
    assert lost.reason == "head.weight holds 2e+19, and numbers beyond 1.8e+19 overflow"
    assert check({"head.weight": with_one(1e19, torch.zeros(4, 5))}, bounded=True)[0] is None


def test_a_mask_of_the_smallest_numbers_may_stay():
    model = Masked()
    model.mask.fill_(torch.finfo(torch.float32).min)
    assert check(model=model, bounded=True)[0] is None
    assert check({"mask": model.mask.clone()}, model=model, bounded=True)[0] is None


@pytest.mark.parametrize("bounded", [False, True])
def test_what_an_algorithm_expects_along_with_the_state_must_not_overflow(bounded):
    lost, _ = check(extras={"steps": torch.tensor(3e38), "other": torch.tensor(3e38)}, bounded=bounded)
    assert lost.reason == "extras['steps'] holds 3e+38, and numbers beyond 1.8e+19 overflow"
    assert check(extras={"other": torch.tensor(3e38)}, bounded=bounded)[0] is None


def test_clients_that_sent_outsized_numbers_are_known():
    _, sound = check({"head.bias": torch.full((4,), 3e38), "conv.bias": torch.full((3,), -1e20)})
    assert [(client, name) for client, name, _ in sound.outsized_updates()] == [(4, "conv.bias")]


def test_an_entry_of_the_global_model_that_becomes_unusable_is_found():
    _, sound = check()
    state = snapshot(Masked())
    for value, shown in ((3e38, "3e+38"), (torch.inf, "inf"), (torch.nan, "nan")):
        name, size = first_outsized(*sound.outsized_model(state | {"hidden.bias": torch.full((5,), value)}))
        assert (name, f"{size:.2g}") == ("hidden.bias", shown)
    assert first_outsized(*sound.outsized_model(state)) is None  # although it has a mask of -inf


def test_a_mask_of_infinite_values_may_stay_and_the_other_entries_are_still_checked():
    assert check({"mask": torch.full((2, 2), -torch.inf)})[0] is None
    lost, _ = check({"hidden.bias": torch.full((5,), torch.nan)})
    assert lost.reason == "hidden.bias is not finite"


FAULTS = {
    "its state lacks head.weight": {"without": ["head.weight"]},
    "its state lacks norm.num_batches_tracked": {"without": ["norm.num_batches_tracked"]},
    "its state has more, which the model does not have": {"changes": {"more": torch.zeros(1)}},
    "head.bias has shape [5], not [4]": {"changes": {"head.bias": torch.zeros(5)}},
    "head.bias is of type torch.int64, not torch.float32": {"changes": {"head.bias": torch.arange(4)}},
    "norm.num_batches_tracked is of type torch.float32, not torch.int64": {
        "changes": {"norm.num_batches_tracked": torch.tensor(1.0)}
    },
    "flag is of type torch.int64, not torch.bool": {"changes": {"flag": torch.tensor(1)}},
    "it has 0 samples": {"num_samples": 0},
    "it has -3 samples": {"num_samples": -3},
    "it has nan samples": {"num_samples": torch.nan},
    f"it has 1{'0' * 39} samples": {"num_samples": 10**400},
    "its learning rate is not finite": {"learning_rate": torch.nan},
    "its loss is not finite": {"metrics": {"loss": torch.tensor(torch.nan)}},
    "extras['steps'] has shape [1], not []": {"extras": {"steps": torch.tensor([3.0])}},
    "extras['steps'] is of type torch.complex64, but the algorithm expects real numbers": {
        "extras": {"steps": torch.tensor(1j)}
    },
    "extras['steps'] is of type int, not a tensor": {"extras": {"steps": 3}},
    "head.bias is of type list, not a tensor": {"changes": {"head.bias": [0.0] * 4}, "num_bytes": 0},
    "its loss is of type float, not a tensor": {"metrics": {"loss": 1.0}},
    "'own' in the memory of Ditto is of type float, not a tensor": {"memory": {"Ditto": {"own": 1.0}}},
    "'own' in the memory of Ditto is not finite": {
        "memory": {"Ditto": {"other": torch.zeros(2), "own": torch.tensor([0.0, torch.nan])}}
    },
    "extras['control'] is not finite": {"extras": {"control": torch.tensor([1.0, torch.inf])}},
}


@pytest.mark.parametrize("reason", FAULTS)
def test_every_other_fault_has_its_reason(reason):
    assert check(**FAULTS[reason])[0].reason == reason


def test_a_client_may_remember_infinite_values_and_whole_numbers():
    memory = {"Ditto": {"best": torch.tensor([torch.inf, -torch.inf]), "steps": torch.tensor(3), "": torch.zeros(0)}}
    assert check(memory=memory)[0] is None


def test_a_frozen_entry_may_be_missing():
    assert check(without=["frozen", "flag"])[0] is None


def test_a_client_that_trains_in_16_bits_may_send_16_bits():
    state = {
        name: value.half() if value.is_floating_point() else value for name, value in Masked().state_dict().items()
    }
    assert check(state)[0] is None


def test_values_on_the_host_are_checked_even_if_nobody_waits_for_the_device():
    lost, sound = check({"frozen": torch.full((2,), torch.nan)}, wait=False)
    assert lost.reason == "frozen is not finite"
    assert sound.num_doubts() is None
    assert sound.confirmed_doubts() == []


def test_a_model_without_real_entries_can_be_checked():
    model = nn.Module()
    model.register_buffer("count", torch.tensor(3))
    assert check(model=model)[0] is None
