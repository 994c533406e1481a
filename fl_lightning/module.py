"""The server's side of any LightningModule."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning.delegation import delegate_hooks
from fl_lightning.optimizer import Install

if TYPE_CHECKING:
    from fl_lightning.callbacks.server import FederatedServer

_EVALUATION_HOOKS = tuple(
    f"on_{stage}_{moment}"
    for stage in ("validation", "test", "predict")
    for moment in ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end", "model_eval", "model_train")
)
_HOOKS = (
    *("prepare_data", "setup", "configure_model", "teardown"),
    *("validation_step", "test_step", "predict_step"),
    *("on_save_checkpoint", "on_load_checkpoint"),
    *(hook for hook in _EVALUATION_HOOKS if hasattr(LightningModule, hook)),
)


class FederatedModule(LightningModule):
    """The global model: a LightningModule whose training step is a round of a federation.

    Validation, test and prediction are the module's own; so are the ``state_dict`` and the hyper-parameters, so that
    ``type(module).load_from_checkpoint`` on the run's checkpoint gives the served model. The rounds themselves are the
    :class:`~fl_lightning.callbacks.FederatedServer`'s, a callback of the same Trainer.

    Args:
        module: the model to federate; it need not know that it is.

    Example::

        trainer = Trainer(max_epochs=100, callbacks=[FederatedServer(FedAvg(), client=LocalTraining(epochs=5))])
        trainer.fit(FederatedModule(MyModule()), FederatedDataModule(MyDataModule(), partition=IID(10)))
    """

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        name = type(module).__name__
        for method in ("training_step", "configure_optimizers"):
            if not is_overridden(method, module):
                raise MisconfigurationException(
                    f"{name} has no {method}, so its clients cannot train: define {name}.{method}"
                )
        self.automatic_optimization = False
        self.module = module
        self.strict_loading = module.strict_loading
        self.example_input_array = module.example_input_array
        self._adopt_hyper_parameters()
        delegate_hooks(self, module, _HOOKS)
        self._server: FederatedServer | None = None

    def register_server(self, server: "FederatedServer") -> None:
        """Called by the server callback: from now on it runs this module's rounds."""
        self._server = server

    @property
    def server(self) -> "FederatedServer":
        """The callback that runs the rounds."""
        if self._server is None:
            raise MisconfigurationException(
                "the Trainer has no FederatedServer: add one, Trainer(callbacks=[FederatedServer(...)])"
            )
        return self._server

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.module(*args, **kwargs)

    def training_step(self, clients: list[int], batch_idx: int) -> None:
        """One round with these clients; in a distributed run, this rank's share of them."""
        self.server.run_round(self, clients)

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Called first of all hooks: the module's own callbacks, which now watch rounds."""
        if self._trainer is not None and self._trainer.state.fn == "fit":
            from fl_lightning.callbacks.preparation import add_round_callbacks, check_flags

            check_flags(self._trainer)
            add_round_callbacks(self._trainer)
        return self.module.configure_callbacks()

    def configure_optimizers(self) -> Optimizer:
        """The server's optimiser over the global model."""
        parameters = self.trainable_parameters()
        return self.server.optimizer(parameters) if self.server.optimizer else Install(parameters)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """The parameters that clients train, in the order of the module."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def move_towards(self, target: Mapping[str, Tensor]) -> None:
        """One step of the server's optimiser; everything that is no trainable parameter is installed as it is."""
        names = {id(value): name for name, value in self.module.state_dict(keep_vars=True).items()}
        parameters = self.trainable_parameters()
        targets = [target[names[id(parameter)]] for parameter in parameters]
        optimizer = self.optimizers()
        assert isinstance(optimizer, Optimizer)
        wrapped = getattr(optimizer, "optimizer", optimizer)
        if isinstance(wrapped, Install):
            wrapped.aim_at(targets)
        else:
            for parameter, value in zip(parameters, targets, strict=True):
                parameter.grad = parameter.detach() - value
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        moved = {id(parameter) for parameter in parameters}
        with torch.no_grad():
            for name, value in self.module.state_dict(keep_vars=True).items():
                if isinstance(value, Tensor) and id(value) not in moved:
                    value.copy_(target[name])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Into the module."""
        if strict:
            self._check_same_model(state_dict)
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def _check_same_model(self, state: Mapping[str, Any]) -> None:
        own = self.module.state_dict()
        for name in [*own, *state]:
            here, there = own.get(name), state.get(name)
            shapes = [getattr(value, "shape", None) for value in (here, there)]
            if (name in own) != (name in state) or shapes[0] != shapes[1]:
                described = [
                    "missing" if shape is None else f"of shape {tuple(shape)}" for shape in (shapes[1], shapes[0])
                ]
                raise MisconfigurationException(
                    f"the checkpoint holds another model: {name} is {described[0]} there and {described[1]} here:"
                    " use the model that the checkpoint was made with"
                )

    def _adopt_hyper_parameters(self) -> None:
        for attribute in ("_hparams", "_hparams_initial", "_hparams_name", "_log_hyperparams"):
            if hasattr(self.module, attribute):
                setattr(self, attribute, getattr(self.module, attribute))
