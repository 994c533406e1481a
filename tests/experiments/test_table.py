import csv
import io
import json

import pytest

from fl_lightning.experiments.cells import Position, Published, Spread
from fl_lightning.experiments.results import compare_with_baseline
from fl_lightning.experiments.table import as_cells, as_csv, as_json, as_markdown, format_duration
from tests.experiments.fakes import result, run


def table(results):
    header, *rows = as_cells(results)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_a_single_seed_has_no_deviation():
    assert table([result(run([0.5]))]) == [
        {"method": "FedAvg", "final": "50.00 %", "best": "50.00 %", "time": "60 s"} | {"sent": "3 MB", "seeds": "1"}
    ]


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([[0.5, 0.96]], "2"),
        ([[0.5, 0.9]], "N/A (90 %)"),
        ([[0.96], [0.5, 0.96], [0.5]], "2, 2 of 3"),
        ([[0.96], [0.9], [0.9]], "N/A (92 %), 1 of 3"),
        ([[0.96], [0.5, 0.96]], "1.5, 2 of 2"),
    ],
)
def test_rounds_to_a_target_are_printed_as_in_the_papers(seeds, text):
    assert table([result(*map(run, seeds), targets=[0.95])])[0]["rounds to 95 %"] == text


def test_published_values_are_shown_beside_ours():
    published = Published({"val/accuracy": Spread(0.97)}, {0.95: Spread(12)})
    (row,) = table([result(run([0.5]), targets=[0.95], published=published)])
    assert row["published"] == "97.00 %"
    assert row["published rounds"] == "12"


def test_a_published_text_is_shown_as_it_is():
    (row,) = table([result(run([0.5]), targets=[0.95], published=Published({}, {0.95: "N/A (92.1)"}))])
    assert row["published rounds"] == "N/A (92.1)"


def test_an_unfinished_run_does_not_count():
    cell = result(run([0.5]), run([0.9], finished=False))
    assert cell.scores["val/accuracy"].final.mean == 0.5
    assert table([cell])[0]["seeds"] == "1 of 2"


def test_a_cell_without_a_finished_run_has_an_empty_row():
    rows = table(
        [result(run([0.9], finished=False), targets=[0.95]), result(run([0.5]), name="FedNNNN", targets=[0.95])]
    )
    assert rows[0] | {"method": "FedAvg", "final": "", "rounds to 95 %": "", "seeds": "0 of 1"} == rows[0]


def test_every_metric_has_its_own_columns():
    (row,) = table([result(run([0.5], **{"val/f1": [0.25]}), metrics=["val/accuracy", "val/f1"])])
    assert row["final accuracy"] == "50.00 %"
    assert row["final f1"] == "25.00 %"
    assert "best f1" not in row


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("val/perplexity", 31.5, "31.5"),
        ("divergence/statistics", 0.0578, "0.0578"),
        ("val/score", 0.25, "0.25"),
        ("val/accuracy", 0.25, "25.00 %"),
    ],
)
def test_the_metric_decides_whether_its_values_are_percentages(metric, value, text):
    assert table([result(run([value], metric), metrics=[metric])])[0]["final"] == text


def test_differences_to_published_values_are_in_percentage_points_and_rounds():
    published = Published({"val/accuracy": Spread(0.97, 0.002)}, {0.95: Spread(12)}, "Table I")
    (row,) = table([result(run([0.5, 0.96]), targets=[0.95], published=published)])
    assert row["published (Table I)"] == "97.00 ± 0.20 %"
    assert row["final vs published"] == "-1.00 pp"
    assert row["published rounds (Table I)"] == "12"
    assert row["rounds vs published"] == "-10"


def test_several_sources_are_shown_with_their_values():
    cells = [
        result(run([0.5]), name=name, published=Published({"val/accuracy": Spread(0.5)}, {}, f"Table {name}"))
        for name in "AB"
    ]
    assert [row["published"] for row in table(cells)] == ["50.00 % (Table A)", "50.00 % (Table B)"]


def test_differences_to_the_baseline_are_shown_for_every_metric_and_target():
    metrics, targets = ["val/accuracy", "val/loss"], [0.5, 0.75]
    cells = [
        result(run([0.25, 0.5, 0.5, 0.75], **{"val/loss": [2.0]}), metrics=metrics, targets=targets),
        result(run([0.5, 0.75, 0.8], **{"val/loss": [1.5]}), metrics=metrics, targets=targets, name="B"),
    ]
    first, second = table(compare_with_baseline(cells, "FedAvg"))
    assert second["final accuracy vs FedAvg"] == "+5.00 pp"
    assert second["final loss vs FedAvg"] == "-0.5"
    assert second["rounds to 50 % vs FedAvg"] == "-50.0 %"
    assert second["rounds to 75 % vs FedAvg"] == "-50.0 %"
    assert not any(text for name, text in first.items() if "vs" in name)


def test_a_cell_that_cannot_run_shows_the_reason_and_what_is_published():
    published = Published({"val/accuracy": Spread(0.8644)})
    rows = table([result(skip="needs a chain", name="FedMA", published=published), result(run([0.5]))])
    assert rows[0] == {"method": "FedMA", "final": "needs a chain", "published": "86.44 %"} | dict.fromkeys(
        ("best", "time", "sent", "seeds"), ""
    )


def test_a_cell_that_has_not_run_shows_what_is_published():
    published = Published({}, {0.95: Spread(12)})
    assert table([result(published=published, targets=[0.95])])[0]["published rounds"] == "12"


def test_the_parameter_is_the_heading_of_its_values():
    assert table([result(run([0.5]), column="5", x=Position("α", 5.0))])[0]["α"] == "5"


def test_csv_has_plain_numbers():
    cells = [
        result(
            run([0.5]),
            run([0.6]),
            targets=[0.55, 0.95],
            column="IID",
            published=Published({"val/accuracy": Spread(0.7)}),
        )
    ]
    (row,) = csv.DictReader(io.StringIO(as_csv(cells)))
    assert row["setting"] == "IID"
    assert float(row["val/accuracy final mean"]) == pytest.approx(0.55)
    assert float(row["val/accuracy published"]) == 0.7
    assert row["rounds to 0.55"] == ""
    assert row["reached 0.55"] == "1"
    assert float(row["bytes"]) == 3e6


def test_csv_has_what_is_published_the_differences_and_the_reasons():
    published = Published({"val/accuracy": Spread(0.75, 0.1)}, {0.5: "N/A"}, "Table I")
    cells = [
        result(run([0.25, 0.5]), targets=[0.5], published=published),
        result(run([0.75]), targets=[0.5], name="B"),
        result(skip="no chain", targets=[0.5], name="C"),
    ]
    first, second, third = csv.DictReader(io.StringIO(as_csv(compare_with_baseline(cells, "FedAvg"))))
    assert (first["val/accuracy published"], first["val/accuracy published std"]) == ("0.75", "0.1")
    assert (first["rounds to 0.5 published"], first["source"]) == ("N/A", "Table I")
    assert first["val/accuracy minus published"] == "-0.25"
    assert (second["val/accuracy minus baseline"], second["rounds to 0.5 reduction"]) == ("0.25", "0.5")
    assert (third["skipped"], third["finished"]) == ("no chain", "0")


def test_json_has_what_is_published_the_differences_and_the_reasons():
    published = Published({"val/accuracy": Spread(0.75)}, {0.5: "N/A"}, "Table I")
    x = Position("α", 5.0)
    cells = [result(run([0.5]), targets=[0.5], published=published, x=x), result(skip="no chain", name="C")]
    first, second = json.loads(as_json("title", cells))["cells"]
    assert first["published"] == {
        "metrics": {"val/accuracy": {"mean": 0.75, "std": None}},
        "rounds": [{"target": 0.5, "rounds": "N/A"}],
        "source": "Table I",
    }
    assert first["scores"]["val/accuracy"]["minus_published"] == -0.25
    assert first["x"] == {"label": "α", "value": 5.0}
    assert second["skip"] == "no chain"


def test_json_is_strict_and_has_null_for_a_target_that_was_not_reached():
    text = as_json("title", [result(run([0.5]), targets=[0.95])])
    (cell,) = json.loads(text, parse_constant=pytest.fail)["cells"]
    assert cell["targets"] == [
        {"target": 0.95, "rounds": None, "reached": 0, "minus_published": None, "reduction": None}
    ]
    assert cell["scores"]["val/accuracy"]["final"] == {"mean": 0.5, "std": None}


def test_markdown_is_aligned():
    text = as_markdown([result(run([0.5])), result(run([0.625]), name="FedNNNN with a | in its name")])
    unescaped = [row.replace("\\|", "/|") for row in text.splitlines()]
    assert len({len(row) for row in unescaped}) == 1
    assert "FedNNNN with a \\| in its name" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(41.4, "41 s"), (99.4, "99 s"), (200, "3 min"), (6000, "1 h 40 min"), (90_000, "25 h 00 min")]
)
def test_a_duration_is_printed_in_seconds_minutes_or_hours(seconds, text):
    assert format_duration(seconds) == text
