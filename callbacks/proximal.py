"""The proximal term of FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch.optim import Optimizer

from fl_lightning.local import ClientCallback


class ProximalTerm(ClientCallback):
    """Adds μ/2 · ‖w - w_t‖² to the client's loss, as μ (w - w_t) on the gradient, which needs no second graph.

    Args:
        mu: strength of the term; 0 changes nothing.
    """

    def __init__(self, mu: float) -> None:
        if mu < 0:
            raise MisconfigurationException(f"mu={mu}, but the term holds clients back: set it to 0 or more")
        self.mu = mu

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called once a step, before clipping."""
        if self.mu == 0:
            return
        for name, parameter in pl_module.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - self.round.start[name], alpha=self.mu)
