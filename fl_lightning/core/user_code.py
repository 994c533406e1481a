"""Tells a user's own code from libraries: errors in the former keep their traceback, which shows what to correct."""

import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType

#: folders of code that is not the user's own
_LIBRARIES = tuple(
    str(folder)
    for folder in {
        *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(Path(folder).resolve() for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))),
        *(Path(module.__file__ or "").resolve().parent for module in [sys.modules["fl_lightning"]]),
    }
)


def frames_of(trace: TracebackType | None) -> list[FrameType]:
    """Return the frames of a traceback, from the outermost to the one that raised the error."""
    return [frame for frame, _ in traceback.walk_tb(trace)]


def is_user_code(frame: FrameType) -> bool:
    """Return whether a frame belongs neither to Python nor to an installed package."""
    file = frame.f_code.co_filename
    if file.startswith("<") or frame.f_globals.get("__name__", "").partition(".")[0] == "fl_lightning":
        return False
    return not str(Path(file).resolve()).startswith(_LIBRARIES)
