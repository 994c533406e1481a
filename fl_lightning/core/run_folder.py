"""The folder of a run. No other module knows where a run keeps its files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class RunFolder:
    """The files of a run that ``fl-lightning fit`` or ``compare`` writes, none of which needs to exist yet.

    Example:
        >>> RunFolder(Path("runs/demo/version_0")).checkpoint.as_posix()
        'runs/demo/version_0/checkpoints/last.ckpt'
    """

    #: file name of the checkpoint after the last complete round, without its suffix
    LAST: ClassVar[str] = "last"

    _CONFIG: ClassVar[str] = "config.yaml"
    _CHECKPOINTS: ClassVar[str] = "checkpoints"
    _EVENTS: ClassVar[str] = "events.out.tfevents.*"

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def of_checkpoint(cls, checkpoint: Path) -> "RunFolder":
        """Return the folder whose ``checkpoints/`` holds the given file. The path is absolute."""
        return cls(checkpoint.resolve().parent.parent)

    @classmethod
    def below(cls, root: Path) -> "Iterator[RunFolder]":
        """Yield every folder at or below ``root`` that holds a configuration or events, in no particular order."""
        files = (*root.rglob(cls._CONFIG), *root.rglob(cls._EVENTS))
        yield from {cls(file.parent): None for file in files}

    @property
    def config(self) -> Path:
        """The configuration that the run started with."""
        return self.path / self._CONFIG

    @property
    def checkpoint(self) -> Path:
        """The checkpoint after the last complete round, from which a run is resumed."""
        return self.path / self._CHECKPOINTS / f"{self.LAST}.ckpt"

    @property
    def previous_checkpoint(self) -> Path:
        """The checkpoint after the round before the last, in case the last one is damaged."""
        return self.checkpoint.with_name("previous.ckpt")

    @property
    def lock(self) -> Path:
        """The file that is locked while a process writes to the folder. It names that process."""
        return self.path / "run.lock"

    @property
    def provenance(self) -> Path:
        """What the result depends on: versions, machine, code, seed, and fingerprints of the data and the partition."""
        return self.path / "provenance.yaml"

    def provenance_from_round(self, number: int) -> Path:
        """Return the provenance from this round on, counted from 1, if the run was resumed in a new environment."""
        return self.path / f"provenance_from_round_{number}.yaml"

    @property
    def record(self) -> Path:
        """What ``compare`` records about a run that it started: row, column, seed, and whether the run has finished."""
        return self.path / "compare.json"

    @property
    def log(self) -> Path:
        """The output of a run that ``compare`` started."""
        return self.path / "fit.log"

    @property
    def client_errors(self) -> Path:
        """The tracebacks of clients whose training raised an exception."""
        return self.path / "client_errors.log"

    @property
    def resume_error(self) -> Path:
        """The traceback of an error in the first round after a checkpoint, if no code of the user caused it."""
        return self.path / "resume_error.log"

    @property
    def events(self) -> list[Path]:
        """TensorBoard's event files, one per start of the run, sorted by name."""
        return sorted(self.path.glob(self._EVENTS))

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a run, and not just a file named ``config.yaml``."""
        return self.config.is_file() and (self.path / self._CHECKPOINTS).is_dir()

    @property
    def configs(self) -> list[Path]:
        """The configurations of the run: the one that it started with, then those it was resumed with."""
        return [path for path in (self.config, *sorted(self.path.glob("config_from_round_*.yaml"))) if path.is_file()]

    def config_from_round(self, number: int) -> Path:
        """Return the configuration of a run that was resumed with different settings in this round, counted from 1."""
        return self.path / f"config_from_round_{number}.yaml"


def short_path(path: str | Path) -> str:
    """Return a path relative to the current folder if it is inside that folder."""
    absolute, here = Path(path).resolve(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)
