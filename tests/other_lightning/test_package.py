"""How the package chooses between the two copies of Lightning."""

import importlib.util
import sys

import pytest

from fl_lightning._lightning import package
from fl_lightning._lightning.package import VARIABLE, _choose
from fl_lightning.core.errors import MisconfigurationError


@pytest.fixture
def imported(monkeypatch):
    """Return a function that pretends that the program has imported these packages, in this order."""
    monkeypatch.delenv(VARIABLE, raising=False)

    def pretend(*names):
        modules = {name: module for name, module in sys.modules.items() if "lightning" not in name}
        monkeypatch.setattr(package.sys, "modules", modules | dict.fromkeys(names))

    return pretend


@pytest.fixture
def installed(monkeypatch):
    """Return a function that pretends that only these packages are installed."""

    def pretend(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in names else None)

    return pretend


@pytest.mark.parametrize(
    ("modules", "chosen"),
    [
        (["torch"], "pytorch_lightning"),
        (["lightning", "lightning.pytorch"], "lightning.pytorch"),
        (["pytorch_lightning"], "pytorch_lightning"),
        (["lightning", "lightning.pytorch", "pytorch_lightning"], "lightning.pytorch"),
        (["pytorch_lightning", "lightning", "lightning.pytorch"], "pytorch_lightning"),
    ],
)
def test_the_copy_that_was_imported_first_is_used(imported, modules, chosen):
    imported(*modules)
    assert _choose() == chosen


def test_the_copy_that_is_installed_is_used_if_none_was_imported(imported, installed):
    imported()
    installed("lightning")
    assert _choose() == "lightning.pytorch"


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("lightning", "lightning.pytorch"),
        ("lightning.pytorch", "lightning.pytorch"),
        ("pytorch_lightning", "pytorch_lightning"),
        ("", "pytorch_lightning"),
    ],
)
def test_the_environment_variable_takes_either_name_and_may_be_empty(imported, monkeypatch, value, chosen):
    imported()
    monkeypatch.setenv(VARIABLE, value)
    assert _choose() == chosen


def test_another_name_in_the_environment_variable_is_refused(monkeypatch):
    monkeypatch.setenv(VARIABLE, "keras")
    with pytest.raises(MisconfigurationError) as error:
        _choose()
    assert str(error.value) == "FL_LIGHTNING_PACKAGE=keras: set it to pytorch_lightning or lightning"


def test_a_copy_in_the_environment_variable_that_is_not_installed_is_refused(monkeypatch, installed):
    installed("pytorch_lightning")
    monkeypatch.setenv(VARIABLE, "lightning")
    with pytest.raises(MisconfigurationError) as error:
        _choose()
    fix = "unset it, or install lightning"
    assert str(error.value) == f"FL_LIGHTNING_PACKAGE=lightning, but it is not installed: {fix}"
