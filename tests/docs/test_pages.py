"""Every file that a page mentions exists, and every part of the package is mentioned on a page."""

import inspect
import re

import pytest
import yaml
from pytorch_lightning import LightningDataModule

import fl_lightning
from fl_lightning import aggregation, attacks, callbacks, client, data, metrics, models, transforms
from fl_lightning.aggregation import Aggregator
from fl_lightning.callbacks import ClientCallback, ClientEvaluation, Diagnostics
from fl_lightning.experiments.suite import load_suite
from tests.docs.pages import DOCS, PAGES, links, names, paths
from tests.runs import REPOSITORY

CONFIGS = REPOSITORY / "configs"
README = REPOSITORY / "README.md"
PACKAGES = [fl_lightning, aggregation, attacks, callbacks, client, data, metrics, models, transforms]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def concrete(package, *bases: type) -> list[str]:
    """Return the public classes of a package that are not abstract and derive from one of the bases."""
    members = {name: getattr(package, name) for name in package.__all__}
    return [
        name
        for name, member in members.items()
        if inspect.isclass(member) and issubclass(member, bases) and not inspect.isabstract(member)
    ]


@every_page
def test_every_link_leads_to_a_file(page):
    missing = [str(target) for target in links(page) if not target.exists()]
    assert not missing


@every_page
def test_every_path_exists(page):
    missing = [str(path) for path in paths(page) if not path.exists() and not list(path.parent.glob(path.name))]
    assert not missing


def test_paths_are_found_in_prose_and_commands():
    assert CONFIGS / "demo.yaml" in paths(README)
    assert CONFIGS / "algorithms" / "fednnnn.yaml" in paths(README)


#: tests/test_papers.py checks that docs/papers.md lists those in configs/papers
LISTED = [config for config in sorted(CONFIGS.rglob("*.yaml")) if CONFIGS / "papers" not in config.parents]


@pytest.mark.parametrize("config", LISTED, ids=lambda path: path.stem)
def test_every_config_is_listed_in_the_readme_of_the_configs(config):
    assert config.stem in names(CONFIGS / "README.md")


@pytest.mark.parametrize("overlay", sorted((CONFIGS / "algorithms").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_overlay_of_an_algorithm_is_on_the_algorithms_page(overlay):
    assert overlay in paths(DOCS / "algorithms.md")


@pytest.mark.parametrize(
    "name",
    [
        *concrete(aggregation, Aggregator),
        *(name for name in concrete(callbacks, ClientCallback) if name != "ClientCallback"),
        *concrete(callbacks, Diagnostics, ClientEvaluation),
        *concrete(transforms, transforms.UploadTransform),
        *concrete(data, data.Partition, data.Selection),
        *(name for name in concrete(data, LightningDataModule) if name != "FederatedDataModule"),
        *(name for name in models.__all__ if inspect.isclass(getattr(models, name))),
    ],
)
def test_every_part_is_in_the_table_of_the_readme(name):
    assert name in names(README)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_package_has_a_page_in_the_reference(package):
    page = DOCS / "api" / f"{package.__name__.partition('.')[2] or 'index'}.md"
    assert f"::: {package.__name__}" in page.read_text()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_every_page_is_in_the_navigation(page):
    navigation = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]
    assert str(page.relative_to(DOCS)) in str(navigation)


def test_the_suites_in_the_documentation_load(tmp_path):
    for path in CONFIGS.iterdir():
        (tmp_path / path.name).symlink_to(path)
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "comparisons.md").read_text(), re.DOTALL)
    suites = [block for block in blocks if "rows:" in block]
    assert len(suites) == 2
    for block in suites:
        (tmp_path / "suite.yaml").write_text(block)
        assert load_suite(tmp_path / "suite.yaml").cells


def test_the_first_suite_in_the_documentation_is_that_of_load_suite():
    written = re.search(r"```yaml\n(.*?)```", inspect.getdoc(load_suite), re.DOTALL).group(1)
    shown = re.search(r"```yaml\n(title.*?)```", (DOCS / "comparisons.md").read_text(), re.DOTALL).group(1)
    assert yaml.safe_load(written) == yaml.safe_load(shown)
