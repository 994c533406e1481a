"""Configs with a wrong or an unusual setting of Lightning's Trainer, at the server or at clients."""

from collections.abc import Iterator
from typing import Any

from tests.cli.mutations.base import Mutation, base, changed

_FOLDERS = ("/proc/nowhere", "/dev/null", "/dev/null/below", "\0", "x" * 300, "c.yaml", "")
_WRONG_FLAGS: list[tuple[str, Any]] = [
    *(("client.max_steps", 0), ("client.limit_train_batches", 0), ("client.max_epochs", 3)),
    *(("client.limit_train_batches", -0.5), ("trainer.limit_train_batches", 0), ("trainer.limit_val_batches", -1)),
    *(("client.devices", 2), ("client.accelerator", "gpu"), ("client.strategy", "ddp"), ("client.max_time", "abc")),
    *(("trainer.max_steps", 0), ("trainer.max_epochs", 0), ("client.profiler", "abc"), ("trainer.profiler", "abc")),
    *(("client.gradient_clip_algorithm", "abc"), ("client.gradient_clip_val", "abc"), ("trainer.plugins", "abc")),
    *(("client.detect_anomaly", "abc"), ("trainer.max_time", "abc"), ("trainer.gradient_clip_algorithm", "abc")),
    *(("trainer.num_nodes", 0), ("trainer.num_nodes", -1), ("trainer.num_nodes", 10**30)),
]
_UNUSUAL_FLAGS: list[tuple[str, Any]] = [
    *(("client.fast_dev_run", True), ("client.logger", True), ("client.enable_checkpointing", True)),
    *(("client.min_epochs", 10**30), ("client.min_steps", 10**30), ("client.overfit_batches", 1)),
    *(("client.val_check_interval", 0.5), ("client.reload_dataloaders_every_n_epochs", 1), ("client.barebones", True)),
    *(("client.accumulate_grad_batches", 0), ("trainer.barebones", True), ("trainer.fast_dev_run", True)),
    *(("trainer.overfit_batches", 1), ("trainer.val_check_interval", 0.5), ("trainer.accumulate_grad_batches", 2)),
    *(("trainer.gradient_clip_val", 1), ("trainer.reload_dataloaders_every_n_epochs", 1), ("trainer.min_epochs", 10)),
    *(("trainer.sync_batchnorm", True), ("trainer.detect_anomaly", True)),
    *(("trainer.benchmark", 3), ("trainer.inference_mode", False)),
    *(("trainer.logger", True), ("trainer.use_distributed_sampler", False), ("trainer.check_val_every_n_epoch", 0)),
]


def settings() -> Iterator[Mutation]:
    """Yield all of them."""
    for name in ("fsdp", "deepspeed", "nonsense", "dp", "xla", 1):
        yield _setting("trainer.strategy", name, wrong=True)
    yield _setting("trainer.strategy", "single_device", wrong=False)
    for name in ("gpu", "tpu", "nonsense", "cuda", "mps", 1, [], {}):
        yield _setting("trainer.accelerator", name, wrong=True)
    for value in (0, -1, -2, "abc", [], [0, 0], [7], {}, "0", 1.5, 10**30, 10**5):
        yield _setting("trainer.devices", value, wrong=value not in (-1, "0"))
    for value in ("16-true", "64-true", "abc", 16, 7, "bf16-mixed", "transformer-engine"):
        for section in ("client", "trainer"):
            yield _setting(f"{section}.precision", value, wrong=value in ("abc", 7))
    saving = changed(changed(base(), "trainer.logger", None), "trainer.enable_checkpointing", True)
    for key in ("trainer.default_root_dir", "server.client_folder"):
        for folder in _FOLDERS:
            wrong = folder.startswith(("/dev/null", "/proc", "\0", "xx"))
            yield Mutation(f"{key} is {folder[:20]!r}", changed(saving, key, folder), wrong or None)
    for key, value in _WRONG_FLAGS:
        yield _setting(key, value, wrong=True)
    for key, value in _UNUSUAL_FLAGS:
        yield _setting(key, value, wrong=False)


def _setting(key: str, value: Any, wrong: bool) -> Mutation:
    return Mutation(f"{key} is {value!r}", changed(base(), key, value), wrong or None)
