"""The arguments that an object was made with, read back from its attributes."""

import inspect
from typing import Any


def kept_arguments(instance: object) -> dict[str, Any]:
    """Return the constructor arguments that an object keeps under their own names, in the order of the signature."""
    parameters = inspect.signature(type(instance).__init__).parameters
    return {name: getattr(instance, name) for name in parameters if name != "self" and hasattr(instance, name)}


def changed_arguments(instance: object) -> dict[str, Any]:
    """Return the :func:`kept_arguments` that differ from their defaults."""
    parameters = inspect.signature(type(instance).__init__).parameters
    return {name: value for name, value in kept_arguments(instance).items() if value != parameters[name].default}
