import numpy as np
import pytest

from fl_lightning.experiments.cells import Position
from fl_lightning.reports.parameter import parameter_section
from tests.experiments.fakes import result, run


@pytest.fixture
def drawn(monkeypatch):
    """Keep the arguments of every figure, by its title."""
    kept = {}
    monkeypatch.setattr(
        "fl_lightning.reports.parameter.figure", lambda title, *arguments: kept.setdefault(title, arguments) and title
    )
    return kept


def cell(name, value, *runs, **more):
    x = None if value is None else Position("α", value)
    return result(*runs, name=name, column="" if value is None else str(value), x=x, targets=[0.75], **more)


def test_the_final_metric_and_the_rounds_are_drawn_against_the_parameter(drawn):
    results = [
        cell("B", 2.0, run([0.5, 0.75])),
        cell("B", 1.0, run([0.75]), run([0.25])),
        cell("C", 1.0, run([0.5])),
        cell("C", 2.0, skip="too slow"),
    ]
    section = parameter_section(results, ["val/accuracy"], [0.75])
    assert section.title == "Results against α"
    assert section.legend == [(0, "B"), (1, "C")]
    assert section.figures == ["Final val/accuracy against α", "Rounds to val/accuracy = 0.75 against α"]
    first, second = drawn["Final val/accuracy against α"][1]
    assert (first.x.tolist(), first.y.tolist()) == ([1.0, 2.0], [0.5, 0.75])
    np.testing.assert_allclose(first.width, [np.sqrt(0.125), 0.0])
    assert (second.x.tolist(), second.y.tolist(), second.width) == ([1.0], [0.5], None)
    ((rounds),) = drawn["Rounds to val/accuracy = 0.75 against α"][1]
    assert (rounds.x.tolist(), rounds.y.tolist()) == ([2.0], [2.0])
    assert drawn["Final val/accuracy against α"][-1] == "α"


def test_a_method_without_the_parameter_is_a_level(drawn):
    results = [cell("A", None, run([0.5])), cell("B", 1.0, run([0.6])), cell("B", 4.0, run([0.7]))]
    parameter_section(results, ["val/accuracy"], [])
    level = drawn["Final val/accuracy against α"][1][0]
    assert (level.x.tolist(), level.y.tolist()) == ([1.0, 4.0], [0.5, 0.5])


def test_a_comparison_of_settings_has_no_such_section(drawn):
    assert parameter_section([result(run([0.5]))], ["val/accuracy"], []) is None


def test_nothing_is_drawn_before_the_first_run_has_finished(drawn):
    assert parameter_section([cell("B", 1.0)], ["val/accuracy"], [0.75]) is None
