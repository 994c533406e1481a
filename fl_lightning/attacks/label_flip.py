"""Label flipping: bad clients train honestly, but on wrong labels.

Fang, Cao, Jia, Gong. Local Model Poisoning Attacks to Byzantine-Robust Federated Learning. USENIX Security 2020
(section 4.1, label flipping attack).
"""

from typing import Any

from torch import Tensor

from fl_lightning.attacks.base import Attack
from fl_lightning.client import ClientCallback
from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number


class LabelFlip(Attack, ClientCallback):
    """Bad clients train with the label C - 1 - y instead of y.

    Args:
        share: the share of all clients that is bad.
        classes: C, the number of classes.
        label: where a batch keeps its labels: the position in a list or tuple, or the key in a dictionary.
    """

    def __init__(self, share: float, classes: int, label: int | str = 1) -> None:
        super().__init__(share)
        reason = "a label can be flipped only to another one"
        check_number("classes", classes, at_least=2, reason=reason, setting="classes of LabelFlip")
        self.classes = classes
        self.label = label
        self._checked = False

    def on_batch(self, batch: Any) -> Any:
        """Flip the labels of a bad client's batch."""
        labels = self._labels_of(batch)  # first, because a run may have a bad client only in a later round
        if not self.is_bad(self.client, self.round):
            return batch
        if not self._checked:  # once per client and round, because on a GPU the host has to wait
            self._checked = True
            largest = int(labels.max())
            if largest >= self.classes:
                raise MisconfigurationError(
                    f"classes={self.classes}, but a batch has the label {largest}:"
                    f" set classes of LabelFlip to {largest + 1} or more"
                )
        flipped = self.classes - 1 - labels
        if isinstance(batch, dict):
            return {**batch, self.label: flipped}
        assert isinstance(self.label, int)
        parts = list(batch)
        parts[self.label] = flipped
        return type(batch)(parts) if type(batch) in (list, tuple) else type(batch)(*parts)

    def _labels_of(self, batch: Any) -> Tensor:
        try:
            labels = batch[self.label]
        except (KeyError, IndexError, TypeError):
            labels = None
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            raise MisconfigurationError(
                f"label={self.label!r}, but a batch ({type(batch).__name__}) has no whole-number labels there:"
                " set label of LabelFlip to the position or key of the labels"
            )
        return labels
