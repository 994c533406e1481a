"""What ``fl_lightning/_lightning`` relies on in both copies of Lightning, ``pytorch_lightning`` and ``lightning``."""

import ast
import logging
from pathlib import Path

import pytest
from lightning_utilities.core import rank_zero
from pytorch_lightning import Callback, LightningDataModule, LightningModule
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_info

from tests.other_lightning.process import run_program
from tests.runs import REPOSITORY

OURS = REPOSITORY / "fl_lightning" / "_lightning"


def imported_names(file: Path) -> list[set[tuple[str, str]]]:
    """Return the modules and names in both branches of a file's choice between the copies."""
    choice = next(
        node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If) and "PACKAGE" in ast.dump(node)
    )
    return [
        {(str(node.module), alias.name) for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
        for body in (choice.body, choice.orelse)
    ]


@pytest.mark.parametrize("name", ["names.py", "cli_names.py"])
def test_both_copies_are_asked_for_the_same_names(name):
    from_lightning, from_pytorch_lightning = imported_names(OURS / name)
    renamed = {
        (
            module.replace("pytorch_lightning", "lightning.pytorch").replace("lightning_fabric", "lightning.fabric"),
            imported,
        )
        for module, imported in from_pytorch_lightning
    }
    assert from_lightning == renamed, f"the branches of {name} differ: a class works with one copy only"


def test_all_names_exist_in_lightning(tmp_path):
    modules = run_program("modules_of_names", folder=tmp_path).value
    foreign = {name: module for name, module in modules.items() if module.startswith(("pytorch_", "lightning_fabric"))}
    assert modules["Trainer"] == "lightning.pytorch.trainer.trainer", "names.py does not use the copy that is imported"
    assert foreign == {}, "lightning passes on classes of pytorch_lightning: refuse_other_copy would refuse them"


def test_importing_one_copy_does_not_import_the_other(tmp_path):
    imported = run_program("imported_copies", folder=tmp_path).value
    assert imported == ["lightning.pytorch"], (
        "package._choose finds the copy that the program uses in sys.modules, where there should be only that one"
    )


@pytest.mark.parametrize("base", [LightningModule, LightningDataModule, Callback, Logger])
def test_a_class_tells_which_copy_it_is_from(base):
    message = "package.refuse_other_copy recognises a copy by the modules of a class's bases"
    assert base.__module__.startswith("pytorch_lightning."), message


def test_messages_go_through_an_attribute_of_a_shared_module(monkeypatch):
    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    messages: list[str] = []
    logger = logging.Logger("own", logging.INFO)
    logger.addHandler(Recorder())
    monkeypatch.setattr(rank_zero, "log", logger)
    rank_zero_info("a message")
    assert messages == ["a message"], "quiet.without_announcements filters lightning_utilities.core.rank_zero.log"


def test_the_copy_that_is_imported_last_takes_over_the_messages_of_both(tmp_path):
    assert run_program("loggers_of_messages", folder=tmp_path).value == [
        "lightning.pytorch.utilities.rank_zero",
        "pytorch_lightning.utilities.rank_zero",
    ], "quiet looks up the logger when it is needed, because importing the other copy replaces it"


@pytest.mark.parametrize("copy", ["lightning_fabric", "lightning/fabric"])
def test_seeding_has_a_logger_of_its_own(copy):
    import lightning_fabric

    source = Path(lightning_fabric.__file__).parent.parent / copy / "utilities" / "seed.py"
    assert "logging.getLogger(__name__)" in source.read_text(), "quiet.silence_irrelevant_messages sets its level"


@pytest.mark.parametrize("copy", ["pytorch_lightning", "lightning/pytorch"])
def test_handling_signals_has_a_logger_of_its_own(copy):
    import lightning_fabric

    source = Path(lightning_fabric.__file__).parent.parent / copy / "trainer" / "connectors" / "signal_connector.py"
    text = source.read_text()
    assert "logging.getLogger(__name__)" in text, "quiet.silence_irrelevant_messages adds a filter to it"
    assert "Received SIGTERM: " in text, "quiet hides this message"
