"""FedPer: every client keeps its own last layers.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019.
"""

from pytorch_lightning import LightningModule, Trainer

from fl_lightning import ClientUpdate
from fl_lightning.callbacks import ClientCallback
from fl_lightning.core.state import StateDict


class PersonalHead(ClientCallback):
    """Trains each client with its own head, which is restored in its next round.

    Args:
        head: prefix of the names of the head's tensors, such as ``net.8.``.
    """

    def __init__(self, head: str) -> None:
        self.head = head

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the client's own head into the model."""
        pl_module.load_state_dict(self.memory, strict=False)

    def on_upload(self, update: ClientUpdate) -> None:
        """Remember the trained head."""
        self.memory = {name: value for name, value in update.state.items() if name.startswith(self.head)}

    def personal_model(self) -> StateDict:
        """Return the head, so that ``ClientEvaluation`` evaluates it."""
        return self.memory
