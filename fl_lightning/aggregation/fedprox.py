"""FedProx: averaging of clients that are held close to the global model.

This file contains the server's and the client's half.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from fl_lightning.aggregation.fedavg import FedAvg
from fl_lightning.client import ClientCallback
from fl_lightning.core.limits import check_number
from fl_lightning.core.state import StateDict


class ProximalTerm(ClientCallback):
    """Adds μ/2 · ‖w - w_t‖² to the client's loss, by adding μ (w - w_t) to the gradient.

    Args:
        mu: strength of the term; 0 changes nothing.
    """

    def __init__(self, mu: float) -> None:
        check_number("mu", mu, at_least=0, reason="a negative term pushes clients away from the global model")
        self.mu = mu

    def on_gradients(self, gradients: StateDict, parameters: StateDict, own: StateDict) -> StateDict:
        """Add the term's gradient."""
        if self.mu == 0:
            return gradients
        return {
            name: gradient.add(parameters[name] - self.round.start[name], alpha=self.mu)
            for name, gradient in gradients.items()
        }


class FedProx(FedAvg):
    """FedAvg with a :class:`ProximalTerm` at every client. For other aggregators, add the term as a client callback.

    Args:
        mu: strength of the term; 0 is FedAvg.
    """

    def __init__(self, mu: float) -> None:
        self.mu = mu
        self._term = ProximalTerm(mu)

    def client_callbacks(self) -> list[ClientCallback]:
        return [self._term]
