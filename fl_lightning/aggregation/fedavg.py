"""FedAvg: federated averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from Decentralized
Data. AISTATS 2017.
"""

from fl_lightning.aggregation.base import Aggregate
from fl_lightning.aggregation.streaming import StreamingAggregator


class FedAvg(StreamingAggregator):
    """The clients' weighted mean becomes the global model: w ← Σ p_k w_k.

    With a server optimiser it becomes FedAvgM, FedAdam, FedAdagrad and so on: see ``FederatedServer(optimizer=...)``.
    """

    def finish_round(self) -> Aggregate:
        return Aggregate(self.result(self.mean))
