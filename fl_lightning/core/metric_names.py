"""What can be inferred from a metric's name. Nothing else decides how a metric is printed or which value is best."""

import re

#: long words also count inside other words, such as ``val_crossentropyloss``; short ones only on their own
_SMALLER_IS_BETTER = re.compile(r"loss|error|divergence|perplexity|distance|(?<![a-z])(kl|nll|mse|mae|rmse)(?![a-z])")
_SHARE = re.compile(r"accuracy|precision|recall|specificity|auroc|(?<![a-z])(acc|f1|auc|iou|dice)(?![a-z])")


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better, judging by its name.

    Example:
        >>> smaller_is_better("val/loss"), smaller_is_better("divergence/statistics"), smaller_is_better("val/f1")
        (True, True, False)
    """
    return _SMALLER_IS_BETTER.search(metric.lower()) is not None


def is_share(metric: str) -> bool:
    """Return whether a metric is a fraction of 1, like an accuracy, which is printed as a percentage.

    Example:
        >>> is_share("val/macro_f1"), is_share("divergence/statistics"), is_share("val/loss")
        (True, False, False)
    """
    return _SHARE.search(metric.lower()) is not None and not smaller_is_better(metric)
