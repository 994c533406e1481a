"""The global model between two rounds: installing a new one, and returning to the last one if a round fails."""

import copy

from torch import nn
from torch.optim import Optimizer

from fl_lightning.aggregation import Aggregate
from fl_lightning.callbacks.run.spoilt_model import ModelCheck
from fl_lightning.core.errors import RoundFailedError
from fl_lightning.core.state import StateDict, snapshot
from fl_lightning.module import FederatedModule


class GlobalModel:
    """The served model and the one that the clients continue from, which differ if the algorithm has two models.

    The served model is in the module, where Lightning validates and saves it. If the clients continue from another one,
    the module holds that one while a round trains, and the served one is kept here.
    """

    def __init__(self) -> None:
        #: the state from which the clients continue, if it is not the served model
        self.clients_state: StateDict | None = None
        #: the served model, while the module holds the clients' one
        self._served_state: StateDict | None = None
        #: on a GPU, the check of the last round's model until a checkpoint is written
        self._check: ModelCheck | None = None

    def begin_round(self, module: nn.Module) -> None:
        """Give the module the state that the clients start from."""
        if self.clients_state is not None:
            self._served_state = snapshot(module)
            module.load_state_dict(self.clients_state)

    def install(self, pl_module: FederatedModule, aggregate: Aggregate, check: ModelCheck) -> None:
        """Make a round's result the global model. On the CPU, stop if the round has spoilt it."""
        module, wrapper = pl_module.module, pl_module.optimizers()
        optimizer = getattr(wrapper, "optimizer", wrapper)
        assert isinstance(optimizer, Optimizer)
        moves = bool(pl_module.server.optimizer)  # otherwise, the aggregate becomes the model as it is
        on_host = pl_module.device.type == "cpu"
        self._check = check
        for state in (aggregate.state, aggregate.served_state):
            check.watch(state)
        if on_host:
            check.decide()
        before = (snapshot(module), copy.deepcopy(optimizer.state_dict())) if moves and on_host else None
        pl_module.server.resize(module, aggregate.state)
        pl_module.move_towards(aggregate.state)
        if moves:
            check.watch(snapshot(module))
        if before is not None:
            try:
                check.decide()
            except RoundFailedError:
                module.load_state_dict(before[0], strict=False)
                optimizer.load_state_dict(before[1])  # a ModelCheckpoint with save_on_exception would save it
                raise
        self._served_state = self.clients_state = None
        if aggregate.served_state is not aggregate.state:
            self.clients_state = copy.deepcopy(dict(module.state_dict()))
            module.load_state_dict(aggregate.served_state)

    def refuse_spoilt(self) -> None:
        """Stop if the last round has spoilt the model. On a GPU, the host waits for the answer."""
        check, self._check = self._check, None
        if check is not None:
            check.decide()

    def undo_round(self, module: nn.Module) -> None:
        """Return to the served model of the last complete round."""
        if self._served_state is not None:
            module.load_state_dict(self._served_state)
            self._served_state = None
