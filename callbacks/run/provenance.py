"""What a run's result depends on, recorded in its folder, so that others can repeat it."""

import inspect
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

import fl_lightning
from fl_lightning._lightning.names import Callback, LightningModule, Trainer
from fl_lightning.callbacks.run.decoration import decoration
from fl_lightning.core.environment import git_states, installed_packages, machine
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.fingerprint import data_fingerprint, partition_fingerprint
from fl_lightning.module import FederatedModule

#: packages that are named first, because they compute the results
_IMPORTANT = (
    "fl-lightning",
    "torch",
    "torchvision",
    "pytorch-lightning",
    "lightning",
    "torchmetrics",
    "numpy",
    "scipy",
)
#: maximum number of differences that are named per kind
_NAMED = 8


class Provenance(Callback):
    """Records the versions of all packages, the machine, the state of the code, the seed, and fingerprints of the data.

    A run that is resumed, or that repeats another one, is compared with the earlier record. What differs is printed
    before the first round, in one line per kind.

    Args:
        repeats: the run that this one repeats, if any.
    """

    def __init__(self, repeats: RunFolder | None = None) -> None:
        self.repeats = repeats

    @decoration
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record, and print how it differs from an earlier one."""
        log_dir = trainer.log_dir  # read on every rank, because rank zero broadcasts it
        data = trainer.datamodule  # type: ignore[attr-defined]
        writes_files = trainer.loggers or trainer.checkpoint_callbacks
        if log_dir is None or not writes_files or not trainer.is_global_zero or "://" in log_dir:
            return
        if not isinstance(data, FederatedDataModule) or not isinstance(pl_module, FederatedModule):
            return
        record = describe_run(trainer, pl_module, data)
        folder = RunFolder(Path(log_dir))
        resumed = trainer.current_epoch > 0
        earlier = folder if resumed else self.repeats
        different = list(differences(_read(earlier.provenance), record)) if earlier is not None else []
        for line in different:
            print(f"Differs from {earlier}: {line}", flush=True)
        if not resumed:
            _write(record, folder.provenance)
        elif different or not folder.provenance.is_file():
            _write(record, folder.provenance_from_round(trainer.current_epoch + 1))


def describe_run(trainer: Trainer, pl_module: FederatedModule, data: FederatedDataModule) -> dict[str, Any]:
    """Return what a run's result depends on, as plain types."""
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": data.seed,
        "data": data_fingerprint(data),
        "partition": partition_fingerprint(data),
        "machine": machine(pl_module.device, trainer.world_size),
        "code": git_states(_places_of_code(pl_module.module, data.source)),
        "packages": installed_packages(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield how two records differ, in one line per kind. Kinds that the old record lacks are skipped."""
    if "seed" in old and old["seed"] != new["seed"]:
        yield f"seed {old['seed']} -> {new['seed']}: results will differ"
    for kind, name in (("data", "training data"), ("partition", "division of the data among the clients")):
        if kind in old and old[kind] != new[kind]:
            yield f"the {name} is not the same ({_changes(old[kind], new[kind])}): results will differ"
    if "code" in old:
        before, after = ({Path(place).name: state for place, state in each["code"].items()} for each in (old, new))
        changed = [
            f"{name} {_describe_code(state)} -> {_describe_code(after[name])}"
            for name, state in before.items()
            if name in after and state != after[name]
        ]
        if changed:
            yield f"code of {'; '.join(changed)}: results may differ"
    for kind in ("packages", "machine"):
        if kind in old and (changes := _changes(old[kind], new[kind])):
            yield f"{changes}: results may differ in the last bits"


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    names = [*_IMPORTANT, *old, *new]
    changed = [
        f"{name} {old.get(name, 'missing')} -> {new.get(name, 'missing')}"
        for name in dict.fromkeys(names)
        if old.get(name) != new.get(name)
    ]
    more = len(changed) - _NAMED
    return "; ".join(changed[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _describe_code(state: Mapping[str, str]) -> str:
    changes = f" with uncommitted changes {state['changes']}" if "changes" in state else ""
    return f"{state['commit'][:10]}{changes}"


def _places_of_code(*objects: object) -> list[Path]:
    """Return the files that define the objects' classes, the current folder and this package."""
    places = [Path.cwd(), Path(fl_lightning.__file__)]
    for each in objects:
        try:
            places.append(Path(inspect.getfile(type(each))))
        except (OSError, TypeError):  # the class was defined in a notebook
            continue
    return places


def _read(path: Path) -> Mapping[str, Any]:
    """Read a record; return an empty one if it is missing or broken."""
    try:
        record = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return record if isinstance(record, dict) else {}


def _write(record: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(record), sort_keys=False, allow_unicode=True))
