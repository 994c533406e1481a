"""The checkpoint that ``--ckpt_path`` names."""

import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import yaml

from fl_lightning.callbacks.run.resumable import read_checkpoint, suggest_checkpoint
from fl_lightning.cli.failures import is_lightnings_mistake
from fl_lightning.client.failures import describe_error
from fl_lightning.core.errors import MisconfigurationError, RoundFailedError, find_disk_error
from fl_lightning.core.run_folder import RunFolder, short_path
from fl_lightning.core.user_code import frames_of, is_user_code
from fl_lightning.experiments.settings import Difference, differences, flatten

#: sections that are compared with the configuration of a run; the others belong to a single command
_SECTIONS = ("seed_everything", "float32_matmul_precision", "model", "data", "client", "server", "trainer")
#: errors that values of wrong types or shapes may cause
_ERRORS_OF_VALUES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError)


def check_checkpoint(ckpt_path: str, resume: bool, weights_only: bool = True) -> None:
    """Reject a file that is missing, damaged or unsuitable, before the data is read.

    Addresses and Lightning's ``hpc`` are left to Lightning.

    Args:
        ckpt_path: the file.
        resume: whether a run continues from it; otherwise, only its weights are needed.
        weights_only: whether only tensors and plain types are loaded, which cannot run code.
    """
    if "://" in ckpt_path or ckpt_path == "hpc":
        return
    if not Path(ckpt_path).is_file():
        raise MisconfigurationError(f"ckpt_path={ckpt_path}: there is no such file")
    if weights_only:
        read_checkpoint(Path(ckpt_path), resume=resume)


def explain_failed_resume(error: BaseException, ckpt_path: str | None, run: RunFolder) -> RoundFailedError | None:
    """Return a one-line error for a run that failed before it had completed a round after its checkpoint.

    Values that somebody has changed in a checkpoint may load without an error and fail only when something computes
    with them. Return None for other errors: of the user's own code, of the system, and those that are one line already.

    Args:
        error: what the run raised.
        ckpt_path: the checkpoint that it was resumed from.
        run: the folder of the run, which keeps the traceback.
    """
    if ckpt_path is None or "://" in ckpt_path or not isinstance(error, _ERRORS_OF_VALUES):
        return None
    if isinstance(error, torch.OutOfMemoryError) or is_lightnings_mistake(error):
        return None
    if find_disk_error(error) is not None or any(is_user_code(frame) for frame in frames_of(error.__traceback__)):
        return None
    kept = ""
    with suppress(OSError):
        run.resume_error.write_text("".join(traceback.format_exception(error)))
        kept = f" (traceback in {short_path(run.resume_error)})"
    return RoundFailedError(
        f"the first round after ckpt_path={ckpt_path} failed, {describe_error(error)}{kept}: if it fails again,"
        f" {suggest_checkpoint(Path(ckpt_path), resume=True)}"
    )


def last_checkpoint_of(run: RunFolder) -> Path:
    """Return the last checkpoint of a run whose configuration is given."""
    if not run.checkpoint.is_file():
        raise MisconfigurationError(_no_checkpoint(run.path))
    return run.checkpoint


def find_last_checkpoint(folder: Path, config: Mapping[str, Any], set_keys: Collection[str]) -> Path:
    """Return the last checkpoint of the newest run with a given configuration.

    A run that differs only in its ``trainer`` section, such as in the number of rounds, is the second choice.

    Args:
        folder: the folder of the runs.
        config: the configuration, with all defaults.
        set_keys: keys of the configuration that do not have their default value, as flat settings.
    """
    runs = [RunFolder(path) for path in sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)]
    runs = [run for run in runs if run.checkpoint.is_file() and run.configs]
    if not runs:
        raise MisconfigurationError(_no_checkpoint(folder))
    wanted = _run_settings(config)
    found = {run: _fewest_differences(run, wanted, set_keys) for run in runs}
    for run, different in found.items():
        if not different:
            return run.checkpoint
    for run, different in found.items():
        if all(_is_trainer(difference) for difference in different):
            return run.checkpoint
    newest = runs[0]
    decisive = next(difference for difference in found[newest] if not _is_trainer(difference))
    raise MisconfigurationError(
        f"ckpt_path=last, but {newest} was run with {decisive.key}={decisive.old}, not {decisive.new}:"
        f" use the options of that run, or set --ckpt_path {newest.checkpoint}"
    )


def _fewest_differences(run: RunFolder, wanted: Mapping[str, Any], set_keys: Collection[str]) -> list[Difference]:
    """Return the differences from the most similar configuration that the run was started or resumed with."""
    configs = [yaml.safe_load(file.read_text()) for file in run.configs]
    return min((differences(_run_settings(config), wanted, set_keys) for config in configs), key=len)


def _run_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({section: config[section] for section in _SECTIONS if section in config})


def _is_trainer(difference: Difference) -> bool:
    return difference.key.startswith("trainer.")


def _no_checkpoint(folder: Path) -> str:
    return f"ckpt_path=last, but {folder} has no checkpoint: run fit without --ckpt_path first"
