"""One-line explanations of errors that other libraries raise because of a mistake in the configuration."""

from types import FrameType

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.user_code import frames_of, is_user_code


def explain_failure(error: BaseException) -> MisconfigurationError | None:
    """Return a one-line error in place of an error that a library raised because of its arguments.

    Return None for an error in the user's own code, because its traceback shows what to correct.
    """
    cause = _first_cause(error)
    if isinstance(cause, MisconfigurationError):
        return cause
    frames = frames_of(cause.__traceback__) + frames_of(error.__traceback__)
    if any(is_user_code(frame) for frame in frames):
        return None
    made = _class_that_was_made(frames_of(cause.__traceback__))
    text = " ".join(str(cause).split()) or "no reason given"
    where = f"{made} cannot be created with these arguments" if made else "the configuration cannot be used"
    return MisconfigurationError(f"{where}, {type(cause).__name__}: {_shortened(text)}: change that setting")


def find_mistake(error: BaseException | None) -> MisconfigurationError | None:
    """Return the user's mistake behind an error, which the parser may have wrapped in errors of its own."""
    while error is not None and not isinstance(error, MisconfigurationError):
        if is_lightnings_mistake(error):
            return MisconfigurationError(str(error))
        error = error.__cause__
    return error


def is_lightnings_mistake(error: BaseException) -> bool:
    """Return whether this is an error that Lightning raises for a user's mistake, in either of its copies."""
    if isinstance(error, RuntimeError) and str(error).startswith("Early stopping conditioned on metric"):
        return True  # the metric is never logged, which is known after the first round
    return any(base.__name__ == "MisconfigurationException" for base in type(error).__mro__)


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that the parser has wrapped in others, or one that already explains the mistake."""
    while error.__cause__ is not None and not isinstance(error, MisconfigurationError):
        error = error.__cause__
    return error


def _class_that_was_made(frames: list[FrameType]) -> str | None:
    """Return the name of the class whose constructor failed. Constructors of the command line itself do not count."""
    for frame in frames:
        made = frame.f_locals.get("self")
        package = frame.f_globals.get("__name__", "")
        is_command = package.endswith(".cli") or package.startswith(("fl_lightning.cli", "jsonargparse"))
        if frame.f_code.co_name == "__init__" and made is not None and not is_command:
            return type(made).__name__
    return None


def _shortened(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]}..."
