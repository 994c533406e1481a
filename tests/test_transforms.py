import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.aggregation import FedAvg
from fl_lightning.callbacks import FederatedServer
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.round import Round
from fl_lightning.core.state import StateLayout
from fl_lightning.transforms import BernoulliMask
from tests.toys import ConvNet, Net, federate, identical, random_updates


def masked(model, update, keep, number=0, seed=0, statistics=False):
    start = {name: value.clone() for name, value in model.state_dict().items()}
    round_ = Round(number=number, num_rounds=None, seed=seed, start=start)
    return BernoulliMask(keep, statistics)(update, round_, StateLayout(model))


@given(seed=st.integers(0, 2**32 - 1), keep=st.floats(0.05, 0.95))
@settings(max_examples=25, deadline=None)
def test_an_entry_of_the_update_is_sent_whole_or_not_at_all(seed, keep):
    model = ConvNet()
    (update,) = random_updates(model, 1, np.random.default_rng(seed))
    sent = masked(model, update, keep, seed=seed % 1000)
    start, kept = model.state_dict(), 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            unchanged = sent.state[name] == start[name]
            assert (unchanged | (sent.state[name] == update.state[name])).all()
            kept += int((~unchanged).sum())
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(sent.state[name], update.state[name])
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert sent.num_bytes == update.num_bytes - 4 * (size - kept)


@given(seed=st.integers(0, 2**32 - 1), keep=st.floats(0.05, 0.95))
@settings(max_examples=25, deadline=None)
def test_the_mask_covers_statistics_only_on_request_and_leaves_that_of_the_parameters_as_it_is(seed, keep):
    model = ConvNet()
    (update,) = random_updates(model, 1, np.random.default_rng(seed))
    plain, sent = (masked(model, update, keep, seed=seed % 1000, statistics=choice) for choice in (False, True))
    start, dropped = model.state_dict(), 0
    for name in ("norm.running_mean", "norm.running_var"):
        same, unchanged = sent.state[name] == update.state[name], sent.state[name] == start[name]
        assert (same | unchanged).all()
        dropped += int((unchanged & ~same).sum())
        assert torch.equal(plain.state[name], update.state[name])
    assert sent.num_bytes == plain.num_bytes - 4 * dropped
    assert torch.equal(sent.state["norm.num_batches_tracked"], update.state["norm.num_batches_tracked"])
    assert all(torch.equal(sent.state[name], plain.state[name]) for name, _ in model.named_parameters())


def test_each_client_keeps_its_own_mask_for_the_whole_run():
    mask = BernoulliMask(0.6).mask
    assert torch.equal(mask(1000, seed=1, client=2), mask(1000, seed=1, client=2))
    assert not torch.equal(mask(1000, seed=1, client=2), mask(1000, seed=1, client=3))
    assert not torch.equal(mask(1000, seed=1, client=2), mask(1000, seed=2, client=2))
    # binomial(100000, 0.6): standard deviation 155
    assert abs(int(mask(100_000, seed=0, client=0).sum()) - 60_000) < 5 * 155


def test_the_server_does_not_rescale_masked_updates(generator):
    model = ConvNet()
    updates = random_updates(model, 4, generator)
    sent = [masked(model, update, 0.6) for update in updates]
    result = FedAvg().aggregate(model, sent, weighting="uniform").state
    layout = StateLayout(model)
    start = layout.flatten(model.state_dict()).parameters.numpy().astype(np.float64)
    expected = start.copy()
    for update in updates:
        mask = BernoulliMask(0.6).mask(len(start), 0, update.client).numpy()
        delta = layout.flatten(update.state).parameters.numpy().astype(np.float64) - start
        expected += 0.25 * delta * mask
    np.testing.assert_allclose(layout.flatten(result).parameters.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_keep_of_one_changes_nothing():
    def run(transforms):
        torch.manual_seed(0)
        federated, trainer = federate(Net(), server=FederatedServer(transforms=transforms), rounds=2)
        return dict(federated.state_dict()), float(trainer.callback_metrics["bytes/up_total"])

    plain, whole = run(None), run([BernoulliMask(1.0)])
    assert identical(plain[0], whole[0])
    assert plain[1] == whole[1]
    assert run([BernoulliMask(0.5)])[1] < 0.7 * plain[1]


@pytest.mark.parametrize("keep", [0.0, 1.1])
def test_a_keep_that_is_not_a_probability_is_refused(keep):
    with pytest.raises(MisconfigurationError, match=f"keep={keep}"):
        BernoulliMask(keep)
