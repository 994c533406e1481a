import pytest
import yaml

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.suite import load_suite
from tests.runs import REPOSITORY


@pytest.fixture
def suite(tmp_path):
    """Load a suite with some content, in a folder that also has a.yaml, b.yaml and c.yaml."""
    for name in "abc":
        (tmp_path / f"{name}.yaml").write_text("{}")

    def load(content, seeds=None):
        (tmp_path / "suite.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load_suite(tmp_path / "suite.yaml", seeds)

    return load


def test_a_cell_combines_base_then_column_then_row(suite, tmp_path):
    loaded = suite(
        {"base": "a.yaml", "columns": {"IID": ["b.yaml", {"client": {"epochs": 1}}]}, "rows": {"FedAvg": ["c.yaml"]}}
    )
    (cell,) = loaded.cells
    assert cell.parts == (
        tmp_path / "a.yaml",
        tmp_path / "b.yaml",
        {"client": {"epochs": 1}},
        tmp_path / "c.yaml",
    )
    assert cell.name == "FedAvg, IID"


def test_every_row_is_combined_with_every_column_setting_by_setting(suite):
    loaded = suite({"columns": {"IID": [], "two": []}, "rows": {"A": [], "B": []}})
    assert [(cell.column, cell.row) for cell in loaded.cells] == [
        ("IID", "A"),
        ("IID", "B"),
        ("two", "A"),
        ("two", "B"),
    ]


@pytest.mark.parametrize(
    ("written", "asked", "seeds"), [(3, None, (1, 2, 3)), ([5, 7], None, (5, 7)), (3, 2, (1, 2)), (None, None, (1,))]
)
def test_seeds_are_a_number_or_a_list_and_the_command_line_overrides_them(suite, written, asked, seeds):
    content = {"rows": {"A": []}} | ({} if written is None else {"seeds": written})
    assert suite(content, asked).seeds == seeds


def test_a_published_number_belongs_to_the_first_metric(suite):
    loaded = suite({"rows": {"A": []}, "metric": ["val/accuracy", "val/f1"], "published": {"A": 0.9}})
    assert loaded.cells[0].published.metrics == {"val/accuracy": 0.9}


def test_published_values_are_given_by_metric_and_rounds_by_target(suite):
    loaded = suite(
        {
            "columns": {"IID": []},
            "rows": {"A": []},
            "metric": ["val/accuracy", "val/f1"],
            "targets": [0.9, 0.95],
            "published": {"A": {"IID": {"val/f1": 0.8, "rounds": [12, "N/A"]}}},
        }
    )
    assert loaded.cells[0].published.metrics == {"val/f1": 0.8}
    assert loaded.cells[0].published.rounds == {0.9: 12, 0.95: "N/A"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rows: {A: [", "suite.yaml is not valid YAML"),
        ("just words", "there are no rows"),
        ({"title": "x"}, "there are no rows"),
        ({"rows": {"A": []}, "seed": 1}, "seed is not a key of a suite: use title, base, columns, rows"),
        ({"rows": ["a.yaml"]}, "is not a mapping: give each entry a name"),
        ({"rows": {"A": ["nowhere.yaml"]}}, "rows.A: nowhere.yaml: there is no such file"),
        ({"rows": {"A": [3]}}, "rows.A: 3 is neither the path of a config nor a mapping"),
        ({"rows": {"A": []}, "seeds": 0}, "seeds=0: set it to a number of seeds, 1 or more"),
        ({"rows": {"A": []}, "seeds": [1, 1]}, "a list of different seeds"),
        ({"rows": {"A": []}, "targets": ["high"]}, "targets: 'high' is not a number"),
        ({"rows": {"A": []}, "metric": []}, "set it to the name of a logged metric"),
        ({"rows": {"A": []}, "published": {"B": 1}}, "published.B: there is no such row, only A"),
        ({"rows": {"A": []}, "columns": {"x": []}, "published": {"A": {"y": 1}}}, "no such column, only x"),
        ({"rows": {"A": []}, "published": {"A": {"f1": 1}}}, "neither rounds nor a metric of the suite"),
        ({"rows": {"A": []}, "published": {"A": {"rounds": [1]}}}, "rounds has 1 values, but there are 0 targets"),
    ],
)
def test_a_mistake_is_reported_in_one_line_that_names_the_file(suite, content, message):
    with pytest.raises(MisconfigurationError) as error:
        suite(content)
    assert message in str(error.value)
    assert "suite.yaml" in str(error.value)
    assert "\n" not in str(error.value)


BUNDLED = [path for path in (REPOSITORY / "configs").rglob("*.yaml") if "rows" in yaml.safe_load(path.read_text())]


@pytest.mark.parametrize("path", sorted(BUNDLED), ids=lambda path: path.stem)
def test_a_bundled_suite_loads(path):
    assert load_suite(path).cells


@pytest.mark.parametrize("content", [{"targets": [95]}, {"published": {"FedAvg": 97.3}}])
def test_a_percentage_instead_of_a_fraction_is_refused(tmp_path, content):
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump({"rows": {"FedAvg": []}} | content))
    with pytest.raises(MisconfigurationError, match=r"but val/accuracy is a fraction of 1: write 0\.9"):
        load_suite(file)
