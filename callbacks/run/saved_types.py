"""The types in a checkpoint from which a run is resumed."""

from typing import Any, TypedDict

from torch import Tensor


class _Run(TypedDict):
    aggregator: str
    server_optimizer: str
    num_clients: int
    seed: int


class _Store(TypedDict):
    entries: dict[str, dict[int, dict[str, Tensor]]]
    versions: dict[str, dict[int, int]]


class _Bytes(TypedDict):
    up: int
    down: int


class _Downloads(TypedDict):
    holders: Tensor
    moved: list[str]


class SavedServer(TypedDict):
    """What :meth:`FederatedServer.state_dict` returns."""

    run: _Run
    aggregator: dict[str, Any]
    store: _Store
    clients_state: dict[str, Tensor] | None
    evaluations: dict[int, dict[str, float]]
    bytes: _Bytes
    downloads: _Downloads


class _Counts(TypedDict):
    ready: int
    completed: int


class _Progress(TypedDict):
    total: _Counts
    current: _Counts


class _FitLoop(TypedDict):
    epoch_progress: _Progress


class _Loops(TypedDict):
    fit_loop: _FitLoop


class _Group(TypedDict):
    params: list[Any]


class _Optimizer(TypedDict):
    state: dict[Any, Any]
    param_groups: list[_Group]


class SavedTrainer(TypedDict):
    """What Lightning saves besides the weights, and a run needs to continue."""

    epoch: int
    global_step: int
    loops: _Loops
    optimizer_states: list[_Optimizer]
    lr_schedulers: list[dict[str, Any]]
    callbacks: dict[str, Any]
