import importlib

import pytest

import fl_lightning


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("ClientUpdate", "fl_lightning.core.update"),
        ("FederatedDataModule", "fl_lightning.data"),
        ("FederatedModule", "fl_lightning.module"),
        ("FederatedServer", "fl_lightning.callbacks"),
        ("LocalTraining", "fl_lightning.client"),
        ("LostClient", "fl_lightning.core.update"),
    ],
)
def test_the_main_classes_are_imported_from_the_package(name, module):
    assert getattr(fl_lightning, name) is getattr(importlib.import_module(module), name)
    assert name in dir(fl_lightning)
    assert name in fl_lightning.__all__


def test_a_name_that_the_package_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'FederatedNothing'"):
        fl_lightning.FederatedNothing  # noqa: B018
