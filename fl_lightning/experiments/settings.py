"""Configurations as flat settings, to compare one with another."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: settings that may differ between repetitions of a run with different seeds
_PER_RUN_SETTINGS = ("seed_everything", "data.seed", "trainer.default_root_dir", "ckpt_path", "weights_only")


@dataclass(frozen=True)
class Difference:
    """A setting in which an earlier run differs from the present configuration."""

    key: str
    old: str
    new: str


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as ``{"client.epochs": 5, ...}``."""
    return dict(_leaves(config))


def flat_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as ``{"client.epochs": 5, ...}``, without the seed and the folder of the run."""
    return {
        key: value
        for key, value in flatten(config).items()
        if key not in _PER_RUN_SETTINGS and not re.match(r"trainer\.logger\b", key)
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any], set_keys: Collection[str]) -> list[Difference]:
    """Return the settings that differ. A setting that the old run did not have yet matters only if it is set.

    Args:
        old: the settings of an earlier run.
        new: the settings to compare with them.
        set_keys: keys of the new settings that do not have their default value.
    """
    return [
        Difference(key, _format(old, key), _format(new, key))
        for key in dict.fromkeys((*new, *old))
        if old.get(key, _MISSING) != new.get(key, _MISSING) and (key in old or key in set_keys)
    ]


_MISSING = object()


def _format(settings: Mapping[str, Any], key: str) -> str:
    """Return a value as text. If the key is missing, the section that it belongs to may have one, such as None."""
    while key not in settings and "." in key:
        key = key.rpartition(".")[0]
    return str(settings.get(key, "nothing"))


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
