"""The client's half of FedMA."""

from collections.abc import Sequence

from torch import nn

from fl_lightning.client import ClientCallback
from fl_lightning.core.update import ClientUpdate, state_bytes


class StagedLayers(ClientCallback):
    """Freezes the layers that are already common while a client trains the others, and sends only one layer per round.

    Args:
        parameters: the names of the parameters of each stage.
        statistics: the names of the statistics of each stage.
        one_shot: whether all layers are sent in every round.
    """

    def __init__(
        self, parameters: Sequence[Sequence[str]], statistics: Sequence[Sequence[str]], one_shot: bool = False
    ) -> None:
        self._parameters = parameters
        self._statistics = statistics
        self._one_shot = one_shot

    def frozen(self, module: nn.Module) -> list[str]:
        """Return the parameters of the layers before the stage of this round."""
        return [name for names in self._parameters[: self._stage] for name in names]

    def on_upload(self, update: ClientUpdate) -> None:
        """Mark as sent only this stage's layer, and the statistics of earlier layers, which training has changed."""
        if self._one_shot:
            return
        later = [*self._parameters[self._stage + 1 :], *self._statistics[self._stage + 1 :]]
        update.unsent = frozenset([*self.frozen(nn.Module()), *(name for names in later for name in names)])
        saved = state_bytes({name: value for name, value in update.state.items() if name in update.unsent})
        update.num_bytes = (update.num_bytes or 0) - saved

    @property
    def _stage(self) -> int:
        return int(self.round.broadcast["stage"])
