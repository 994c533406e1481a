"""What can be inferred from a metric's name."""

_SMALLER_IS_BETTER = ("loss", "error", "divergence", "perplexity")


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better, judging by its name."""
    return any(word in metric.lower() for word in _SMALLER_IS_BETTER)
