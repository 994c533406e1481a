"""FedProx: averaging clients that are held close to the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from fl_lightning.aggregation.fedavg import FedAvg
from fl_lightning.callbacks.proximal import ProximalTerm
from fl_lightning.local import ClientCallback


class FedProx(FedAvg):
    """FedAvg of clients with a proximal term. With another aggregator, use ``ProximalTerm`` as a client callback.

    Args:
        mu: strength of the term; 0 is FedAvg.
    """

    def __init__(self, mu: float) -> None:
        self.term = ProximalTerm(mu)

    def client_callbacks(self) -> list[ClientCallback]:
        return [self.term]
