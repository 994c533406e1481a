import pytest
import yaml

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.cells import Position, Spread
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
    assert loaded.cells[0].published.metrics == {"val/accuracy": Spread(0.9)}


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
    assert loaded.cells[0].published.metrics == {"val/f1": Spread(0.8)}
    assert loaded.cells[0].published.rounds == {0.9: Spread(12), 0.95: "N/A"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rows: {A: [", "suite.yaml is not valid YAML"),
        ("just words", "there are no rows"),
        ({"title": "x"}, "there are no rows"),
        ({"rows": {"A": []}, "seed": 1}, "'seed' is not a key of a suite: use title, base, columns, rows"),
        ({"rows": ["a.yaml"]}, "is not a mapping: give each entry a name"),
        ({"rows": {"A": ["nowhere.yaml"]}}, "rows.A: nowhere.yaml: there is no such file"),
        ({"rows": {"A": [3]}}, "rows.A: 3 is neither the path of a config nor a mapping"),
        ({"rows": {"A": []}, "seeds": 0}, "seeds=0: set it to a number of seeds, 1 or more"),
        ({"rows": {"A": []}, "seeds": [1, 1]}, "a list of different seeds"),
        ({"rows": {"A": []}, "targets": ["high"]}, "targets: 'high' is not a number"),
        ({"rows": {"A": []}, "metric": []}, "set it to the name of a logged metric"),
        ({"rows": {"A": []}, "published": {"B": 1}}, "published.B: there is no such row, only A"),
        ({"rows": {"A": []}, "columns": {"x": []}, "published": {"A": {"y": 1}}}, "no such column, only x"),
        ({"rows": {"A": []}, "published": {"A": {"f1": 1}}}, "neither rounds nor source nor a metric of the suite"),
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


def test_the_parts_of_a_single_cell_come_last(suite, tmp_path):
    loaded = suite(
        {
            "base": "a.yaml",
            "columns": {"IID": [], "two": []},
            "rows": {"FedAvg": ["b.yaml"], "FedProx": []},
            "cells": {"FedAvg": {"two": ["c.yaml", {"client": {"epochs": 2}}]}},
        }
    )
    parts = {cell.name: cell.parts for cell in loaded.cells}
    shared = (tmp_path / "a.yaml", tmp_path / "b.yaml")
    assert parts["FedAvg, IID"] == shared
    assert parts["FedAvg, two"] == (*shared, tmp_path / "c.yaml", {"client": {"epochs": 2}})
    assert parts["FedProx, two"] == (tmp_path / "a.yaml",)


def test_cells_without_columns_are_named_by_their_row(suite):
    loaded = suite({"rows": {"A": [], "B": []}, "cells": {"B": [{"client": {"epochs": 2}}]}, "skip": {"A": "too slow"}})
    assert [(cell.parts, cell.skip) for cell in loaded.cells] == [
        ((), "too slow"),
        (({"client": {"epochs": 2}},), None),
    ]


@pytest.mark.parametrize(
    ("skip", "reasons"),
    [({"A": {"y": "no chain"}}, [None, None, "no chain", None]), ({"A": "no chain"}, ["no chain", None] * 2)],
)
def test_a_cell_or_a_whole_row_is_skipped_for_a_reason(suite, skip, reasons):
    loaded = suite({"columns": {"x": [], "y": []}, "rows": {"A": [], "B": []}, "skip": skip})
    assert [cell.skip for cell in loaded.cells] == reasons


def test_the_values_of_a_sweep_are_columns_and_are_set_after_the_row(suite, tmp_path):
    loaded = suite(
        {
            "base": "a.yaml",
            "rows": {"FedAdp": ["b.yaml"]},
            "cells": {"FedAdp": {5: ["c.yaml"]}},
            "sweep": {"name": "α", "key": "server.aggregator.init_args.alpha", "values": [0.5, 5]},
        }
    )
    first, second = loaded.cells
    assert first.parts[2] == {"server": {"aggregator": {"init_args": {"alpha": 0.5}}}}
    assert second.parts[3] == tmp_path / "c.yaml"
    assert (first.name, first.setting, first.x) == ("FedAdp, 0.5", "α = 0.5", Position("α", 0.5))


def test_a_fixed_row_of_a_sweep_has_one_cell_without_the_parameter(suite):
    loaded = suite(
        {
            "rows": {"FedAvg": [], "FedAdp": []},
            "sweep": {"key": "client.epochs", "values": [1, 2], "fixed": ["FedAvg"]},
            "published": {"FedAvg": 0.5, "FedAdp": {2: 0.6}},
        }
    )
    assert [(cell.name, len(cell.parts)) for cell in loaded.cells] == [
        ("FedAvg", 0),
        ("FedAdp, 1", 1),
        ("FedAdp, 2", 1),
    ]
    assert loaded.cells[0].x is None
    assert loaded.cells[1].x == Position("epochs", 1)
    assert [cell.published.metrics.get("val/accuracy") for cell in loaded.cells] == [Spread(0.5), None, Spread(0.6)]


def test_columns_named_by_numbers_are_places_on_an_axis(suite):
    loaded = suite({"x": "clients", "columns": {5: [], 10: []}, "rows": {"A": []}})
    assert [cell.x for cell in loaded.cells] == [Position("clients", 5), Position("clients", 10)]


def test_a_run_stops_at_the_hardest_target(suite):
    for metric, hardest in (("val/accuracy", 0.9), ("val/loss", 0.5)):
        loaded = suite({"rows": {"A": []}, "metric": metric, "targets": [0.5, 0.9], "stop_at_target": True})
        ((part,),) = (cell.parts for cell in loaded.cells)
        (callback,) = part["trainer"]["callbacks+"]
        assert callback == {"class_path": "StopAtTarget", "init_args": {"monitor": metric, "target": hardest}}


def test_a_checkpoint_of_another_cell_is_a_need(suite):
    loaded = suite(
        {
            "columns": {"Central": [], "5 clients": [{"a": [{"b": "checkpoint of FedAvg, Central"}], "c": "of"}]},
            "rows": {"FedAvg": []},
        }
    )
    needs = {cell.column: cell.needs for cell in loaded.cells}
    assert needs == {"Central": (), "5 clients": ("FedAvg, Central",)}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (0.97, Spread(0.97)),
        ("0.97 ± 0.002", Spread(0.97, 0.002)),
        ("0.97+-2e-3", Spread(0.97, 0.002)),
        ("0.97 +/- .002", Spread(0.97, 0.002)),
        ("static + 1.3 %", "static + 1.3 %"),
        ("0.97 ± 0.1 %", "0.97 ± 0.1 %"),
    ],
)
def test_a_published_value_is_a_number_with_or_without_deviation_or_text(suite, written, value):
    assert suite({"rows": {"A": []}, "published": {"A": written}}).cells[0].published.metrics == {"val/accuracy": value}


def test_a_cell_can_have_another_source_than_the_suite(suite):
    published = {"A": 0.5, "B": {"val/accuracy": 0.6, "source": "Figure 3"}}
    loaded = suite({"rows": {"A": [], "B": []}, "source": "Table I", "published": published})
    assert [cell.published.source for cell in loaded.cells] == ["Table I", "Figure 3"]


SWEEP = {"key": "client.epochs", "values": [1, 2]}
NEEDS = {"A": [{"k": "checkpoint of B"}], "B": [{"k": "checkpoint of A"}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"cells": {"C": []}}, "cells.C: there is no such row, only A, B"),
        ({"columns": {"x": []}, "cells": {"A": {"y": []}}}, "cells.A.y: there is no such column, only x"),
        ({"columns": {"x": []}, "cells": {"A": ["a.yaml"]}}, "cells.A=['a.yaml'] is not a mapping"),
        ({"skip": {"C": "why"}}, "skip.C: there is no such row, only A, B"),
        ({"columns": {"x": []}, "skip": {"A": {"y": "why"}}}, "skip.A.y: there is no such column, only x"),
        ({"skip": {"A": True}}, "skip.A=True: set it to the reason why this cell cannot run"),
        ({"skip": {"A": " "}}, "skip.A=' ': set it to the reason"),
        ({"sweep": SWEEP, "columns": {"x": []}}, "sweep and columns: the values of a sweep are the columns"),
        ({"sweep": SWEEP, "x": "α"}, "sweep and x: the values of a sweep are the columns, so leave x out"),
        ({"sweep": SWEEP | {"step": 1}}, "sweep.step is not a key of a sweep: use name, key, values, fixed"),
        ({"sweep": {"values": [1]}}, "sweep.key=None: set it to the path of a setting"),
        ({"sweep": SWEEP | {"key": "client..epochs"}}, "sweep.key='client..epochs': set it to the path"),
        ({"sweep": SWEEP | {"values": []}}, "sweep.values=[]: set it to a list of different numbers"),
        ({"sweep": SWEEP | {"values": [1, 1]}}, "sweep.values=[1, 1]: set it to a list of different numbers"),
        ({"sweep": SWEEP | {"values": ["a"]}}, "sweep.values: 'a' is not a number"),
        ({"sweep": SWEEP | {"fixed": ["C"]}}, "sweep.fixed: C: there is no such row, only A, B"),
        ({"sweep": SWEEP | {"fixed": ["A", "B"]}}, "sweep.fixed has all rows: leave out those that have the parameter"),
        ({"x": "clients", "columns": {"five": []}}, "columns.five is not a number: with x, the names of all columns"),
        ({"x": "clients"}, "x='clients': set it to the label of the axis, and columns to mappings named by numbers"),
        ({"x": 5, "columns": {5: []}}, "x=5: set it to the label of the axis"),
        ({"stop_at_target": True}, "stop_at_target is true, but there are no targets: add targets"),
        ({"stop_at_target": 3}, "stop_at_target=3: set it to true or false"),
        ({"baseline": "C"}, "baseline=C: there is no such row, only A, B"),
        ({"source": ["Table I"]}, "source=['Table I']: set it to where the paper has the published values"),
        ({"published": {"A": "97.3 ± 0.1"}}, "but val/accuracy is a fraction of 1: write 0.973"),
        ({"targets": [0.9], "published": {"A": {"rounds": [True]}}}, "published.A: True is not a number"),
        ({"rows": {"A": [{"k": "checkpoint of C"}]}}, "A needs the checkpoint of C: there is no such cell, only A"),
        ({"rows": NEEDS}, "the cells need each other's checkpoints in a circle: A needs B needs A"),
        ({"rows": {"A": [{"k": "checkpoint of A"}]}}, "in a circle: A needs A"),
        ({"rows": NEEDS | {"B": []}, "skip": {"B": "why"}}, "A needs the checkpoint of B, which is skipped: skip both"),
    ],
)
def test_a_mistake_in_what_papers_need_is_reported_in_one_line(suite, content, message):
    with pytest.raises(MisconfigurationError) as error:
        suite({"rows": {"A": [], "B": []}} | content)
    assert message in str(error.value)
    assert "suite.yaml" in str(error.value)
    assert "\n" not in str(error.value)
