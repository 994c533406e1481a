"""Ditto: a personal model for every client, held close to the global one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021 (algorithm 1).
https://arxiv.org/abs/2012.04221
"""

from fl_lightning.aggregation import ProximalTerm
from fl_lightning.client import ClientCallback
from fl_lightning.core.limits import check_number
from fl_lightning.core.state import StateDict
from fl_lightning.core.update import ClientUpdate


class Ditto(ClientCallback):
    """Trains v_k on the client's data with v ← v - η (∇F_k(v) + λ (v - w_t)), after the usual local training.

    Ditto does not affect the global model, so it works with any aggregator. A client's first personal model starts from
    the global one. ``ClientEvaluation`` evaluates the personal models. Local training takes twice as long.

    Args:
        lam: λ, how strongly the personal model is held close to the global one; 0 trains each one independently.
    """

    def __init__(self, lam: float = 1.0) -> None:
        check_number(
            "lam",
            lam,
            at_least=0,
            reason="a negative value pushes personal models away from the global one",
            setting="lam of Ditto",
        )
        self.lam = lam

    def on_upload(self, update: ClientUpdate) -> None:
        """Train the personal model after the client has trained the global model."""
        start = self.memory or self.round.start
        others = [callback for callback in self.local_training.callbacks if not isinstance(callback, Ditto)]
        self.memory = self.local_training.train_personal(
            self.client, self.round, start, [*others, ProximalTerm(self.lam)]
        )

    def personal_model(self) -> StateDict:
        """Return v_k; empty for a client that has never taken part, whose model is the global one."""
        return self.memory
