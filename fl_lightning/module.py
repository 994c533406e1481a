"""The wrapper that makes any LightningModule the global model of a federation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning._lightning.client_module import CURRENT_HOOK, without_compilation
from fl_lightning._lightning.delegation import delegate_hooks
from fl_lightning._lightning.hparams import adopt_hyper_parameters
from fl_lightning._lightning.names import Callback, LightningModule, Trainer, is_overridden
from fl_lightning._lightning.package import refuse_other_copy
from fl_lightning._lightning.server_trainer import trainer_of
from fl_lightning.core.errors import MisconfigurationError, refuse_classes
from fl_lightning.core.optimizers import make_server_optimizer
from fl_lightning.core.server_optimizer import ServerOptimizer
from fl_lightning.core.widths import resize

_EVALUATION_HOOKS = tuple(
    f"on_{stage}_{moment}"
    for stage in ("validation", "test", "predict")
    for moment in ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end", "model_eval", "model_train")
)
_HOOKS = (
    *("prepare_data", "setup", "configure_model", "teardown"),
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end"),
    *("validation_step", "test_step", "predict_step"),
    *("on_save_checkpoint", "on_load_checkpoint"),
    *(hook for hook in _EVALUATION_HOOKS if hasattr(LightningModule, hook)),
)


class RoundRunner(Callback, ABC):
    """The callback that a :class:`FederatedModule` needs in its Trainer: it runs the rounds."""

    optimizer: Callable[[Iterable], Optimizer] | None

    @abstractmethod
    def prepare_trainer(self, trainer: Trainer) -> None:
        """Check the Trainer's flags and add the callbacks that rounds need. Called before all other hooks of a fit."""

    @abstractmethod
    def assign_callbacks(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """Keep the module's own callbacks that run on clients, and return those that run on the server."""

    @abstractmethod
    def resize(self, module: LightningModule, state: Mapping[str, Tensor]) -> None:
        """Give the module the widths of a state before it is loaded, if the algorithm changes widths."""

    @abstractmethod
    def run_round(self, pl_module: "FederatedModule", clients: list[int]) -> None:
        """Run one round with this rank's clients, possibly none. The training step calls this on every rank."""


class FederatedModule(LightningModule):
    """The global model: a LightningModule whose training step is a round of a federation.

    Validation, testing and prediction use the module's own hooks. The ``state_dict``, the hyper-parameters and the
    names of layers and parameters are also the module's, so ``type(module).load_from_checkpoint`` loads the served
    model from the run's checkpoint. A callback finds all other attributes of the module here too, such as
    ``pl_module.embed``. Rounds are run by the :class:`~fl_lightning.callbacks.FederatedServer`, a callback of the same
    Trainer.

    Args:
        module: the model to federate; it need not know about federated learning.

    Example::

        trainer = Trainer(max_epochs=100, callbacks=[FederatedServer(FedAvg(), client=LocalTraining(epochs=5))])
        trainer.fit(FederatedModule(MyModule()), FederatedDataModule(MyDataModule(), partition=IID(10)))
    """

    def __init__(self, module: LightningModule) -> None:
        super().__init__()
        refuse_classes(module=module)
        module = without_compilation(module)
        refuse_other_copy(module)
        name = type(module).__name__
        for method in ("training_step", "configure_optimizers"):
            if not is_overridden(method, module):
                raise MisconfigurationError(
                    f"{name} has no {method}, so its clients cannot train: define {name}.{method}"
                )
        self.automatic_optimization = False
        self.module = module
        self.strict_loading = module.strict_loading
        self.example_input_array = module.example_input_array
        adopt_hyper_parameters(self, module)
        delegate_hooks(self, module, _HOOKS)
        self.register_load_state_dict_pre_hook(_insert_wrapper)

    def __getattr__(self, name: str) -> Any:
        """Look up any other attribute, such as ``pl_module.embed`` in a callback, on the module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            module = self._wrapped()
            if module is None or name.startswith("_"):
                raise
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that only the module has on the module, where the module's methods look for it."""
        if name == CURRENT_HOOK:  # Lightning sets it twenty times per batch
            self.__dict__[name] = value
            return
        module = None if name.startswith("_") or hasattr(type(self), name) else self._wrapped()
        if module is None or name == "module" or name in self.__dict__ or not hasattr(module, name):
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def _wrapped(self) -> nn.Module | None:
        """Return the module, or None while this object is being created or copied."""
        return self.__dict__.get("_modules", {}).get("module")

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        module = self._wrapped()
        return module is None or module.training

    @training.setter
    def training(self, mode: bool) -> None:
        module = self._wrapped()
        if module is not None:
            module.training = mode

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        """Yield the module and its layers under the module's own names, which parameters and buffers then have too."""
        return self.module.named_modules(*args, **kwargs)

    def modules(self, *args: Any, **kwargs: Any) -> Iterator[nn.Module]:
        """Yield this wrapper, the module and its layers."""
        yield self
        yield from super().modules(*args, **kwargs)

    @property
    def server(self) -> Any:
        """The :class:`~fl_lightning.callbacks.FederatedServer` of the Trainer."""
        return self._runner(self.trainer)

    def _runner(self, trainer: Trainer) -> RoundRunner:
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        runner = next((callback for callback in callbacks if isinstance(callback, RoundRunner)), None)
        if runner is None:
            raise MisconfigurationError(
                "the Trainer has no FederatedServer: add one, Trainer(callbacks=[FederatedServer(...)])"
            )
        return runner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's own ``forward``."""
        return self.module(*args, **kwargs)

    def training_step(self, clients: list[int], batch_idx: int) -> None:
        """Run one round with these clients; in a distributed run they are this rank's share."""
        self.server.run_round(self, clients)

    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Let the server prepare the Trainer, then return the module's own callbacks that observe rounds."""
        trainer = trainer_of(self)
        if trainer is None or trainer.state.fn != "fit":
            return self.module.configure_callbacks()
        runner = self._runner(trainer)
        runner.prepare_trainer(trainer)
        callbacks = self.module.configure_callbacks()
        return runner.assign_callbacks(callbacks if isinstance(callbacks, Sequence) else [callbacks])

    def configure_optimizers(self) -> Optimizer:
        """Create the server's optimiser for the global model."""
        parameters = self.trainable_parameters()
        if not parameters:
            raise MisconfigurationError(
                f"{type(self.module).__name__} has no parameters to train: give it a network with parameters that"
                " require gradients"
            )
        if not self.server.optimizer:
            return ServerOptimizer(parameters)
        return make_server_optimizer(self.server.optimizer, parameters)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that clients train, in the order of the module."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def move_towards(self, target: Mapping[str, Tensor]) -> None:
        """Take one step of the server's optimiser towards ``target``, and copy everything that it does not move.

        A callback may freeze and unfreeze layers between rounds, so the optimiser's parameters need not be those that
        are trainable now.
        """
        names = {id(value): name for name, value in self.module.state_dict(keep_vars=True).items()}
        optimizer = self.optimizers()
        assert isinstance(optimizer, Optimizer)
        wrapped = getattr(optimizer, "optimizer", optimizer)
        parameters = [parameter for group in wrapped.param_groups for parameter in group["params"]]
        targets = [target[names[id(parameter)]] for parameter in parameters]
        if isinstance(wrapped, ServerOptimizer):
            wrapped.aim_at(targets)
        else:
            for parameter, value in zip(parameters, targets, strict=True):
                parameter.grad = parameter.detach() - value if parameter.requires_grad else None
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        moved = {id(parameter) for parameter in parameters if parameter.requires_grad}
        with torch.no_grad():
            for name, value in self.module.state_dict(keep_vars=True).items():
                if isinstance(value, Tensor) and id(value) not in moved:
                    value.copy_(target[name])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's own state, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state into the module."""
        trainer = trainer_of(self)
        if trainer is not None:
            runners: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
            for runner in runners:
                if isinstance(runner, RoundRunner):
                    runner.resize(self.module, state_dict)
        elif not strict:  # Lightning returns the model from other processes, where it may have grown
            resize(self.module, state_dict)
        if strict:
            self.refuse_other_model(state_dict)
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def refuse_other_model(self, state: Mapping[str, Any]) -> None:
        """Reject a state from a checkpoint that has other entries than the module."""
        own = self.module.state_dict()
        for name in [*own, *state]:
            here, there = own.get(name), state.get(name)
            shapes = [getattr(value, "shape", None) for value in (here, there)]
            real = [isinstance(value, Tensor) and value.is_floating_point() for value in (here, there)]
            if (name in own) != (name in state) or shapes[0] != shapes[1]:
                described = [
                    "missing" if shape is None else f"of shape {tuple(shape)}" for shape in (shapes[1], shapes[0])
                ]
            elif real[0] and not real[1]:
                described = [f"of type {getattr(value, 'dtype', None)}" for value in (there, here)]
            else:
                described = []
            if described:
                raise MisconfigurationError(
                    f"the checkpoint holds a different model: {name} is {described[0]} there and {described[1]} here:"
                    " use the model that the checkpoint was made with"
                )


def _insert_wrapper(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename entries when a module that contains the wrapper, such as an average of models, loads a state."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)
