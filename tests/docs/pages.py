"""Finds the pages of the documentation, and the files and names that they mention."""

import re
from pathlib import Path

from tests.runs import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "configs" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
_FOLDERS = "fl_lightning|callbacks|configs|docs|tests|benchmarks"


def links(page: Path) -> list[Path]:
    """Return the files that a page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    return [page.parent / target for target in targets if "://" not in target]


def paths(page: Path) -> list[Path]:
    """Return the files and folders of the repository that a page mentions, in prose, code and includes."""
    found = re.findall(rf"(?<![\w/.~-])(?:{_FOLDERS})/[\w./*-]*", page.read_text())
    return [REPOSITORY / path.rstrip(".") for path in found]


def names(page: Path) -> set[str]:
    """Return the words that a page formats as code."""
    return {word for code in re.findall(r"`([^`\n]+)`", page.read_text()) for word in re.findall(r"\w+", code)}
