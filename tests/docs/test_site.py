"""The site builds without a warning and needs no network."""

import inspect
import re
import subprocess
import sys

import pytest

from tests.docs.test_pages import PACKAGES
from tests.runs import REPOSITORY

pytestmark = pytest.mark.skipif(
    not (REPOSITORY / ".venv" / "tree").is_dir(), reason="the reference needs the package laid out by `make docs`"
)

LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?://[^\"'\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-4000:]
    return folder


def test_no_page_loads_anything_from_the_network(site):
    loaded = {page.name: LOADED.findall(page.read_text()) for page in site.rglob("*.html")}
    assert len(loaded) > 15
    assert not any(loaded.values()), loaded


def test_the_reference_has_every_public_class_and_function(site):
    ids = {name for page in (site / "api").glob("*.html") for name in re.findall(r'id="([\w.]+)"', page.read_text())}
    documented = {name.rpartition(".")[2] for name in ids}
    for package in PACKAGES:
        public = {name for name in package.__all__ if inspect.isroutine(getattr(package, name))}
        public |= {name for name in package.__all__ if inspect.isclass(getattr(package, name))}
        assert public <= documented, package.__name__


def test_the_examples_are_on_their_page(site):
    page = re.sub("<[^>]+>", "", (site / "extending.html").read_text())
    for example in sorted((REPOSITORY / "docs" / "examples").glob("*.py")):
        (name,) = re.findall(r"^class (\w+)", example.read_text(), re.MULTILINE)
        assert f"class {name}(" in page
