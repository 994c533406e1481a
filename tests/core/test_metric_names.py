import pytest

from fl_lightning.core.metric_names import is_share, smaller_is_better


@pytest.mark.parametrize("metric", ["val/accuracy", "val_acc", "test/macro_f1", "acc1", "val/macro_precision", "AUROC"])
def test_shares_are_recognised_by_their_names(metric):
    assert is_share(metric)
    assert not smaller_is_better(metric)


@pytest.mark.parametrize(
    "metric", ["val/loss", "valLoss", "train/kl", "divergence/statistics", "val_mse", "val/error", "perplexity"]
)
def test_metrics_that_should_fall_are_recognised_by_their_names(metric):
    assert smaller_is_better(metric)
    assert not is_share(metric)


@pytest.mark.parametrize("metric", ["norms/all/N", "bytes/up_accumulated", "my_score", "round/clients", "val/weekly"])
def test_any_other_metric_is_a_plain_number(metric):
    assert not is_share(metric)
    assert not smaller_is_better(metric)
