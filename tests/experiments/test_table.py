import csv
import io
import json

import pytest

from fl_lightning.experiments.suite import Published
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
    published = Published({"val/accuracy": 0.97}, {0.95: 12})
    (row,) = table([result(run([0.5]), targets=[0.95], published=published)])
    assert row["published"] == "97 %"
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


def test_values_above_one_are_not_percentages():
    assert table([result(run([31.5], "val/perplexity"), metrics=["val/perplexity"])])[0]["final"] == "31.5"


def test_csv_has_plain_numbers():
    cells = [
        result(run([0.5]), run([0.6]), targets=[0.55, 0.95], column="IID", published=Published({"val/accuracy": 0.7}))
    ]
    (row,) = csv.DictReader(io.StringIO(as_csv(cells)))
    assert row["setting"] == "IID"
    assert float(row["val/accuracy final mean"]) == pytest.approx(0.55)
    assert float(row["val/accuracy published"]) == 0.7
    assert row["rounds to 0.55"] == ""
    assert row["reached 0.55"] == "1"
    assert float(row["bytes"]) == 3e6


def test_json_is_strict_and_has_null_for_a_target_that_was_not_reached():
    text = as_json("title", [result(run([0.5]), targets=[0.95])])
    (cell,) = json.loads(text, parse_constant=pytest.fail)["cells"]
    assert cell["targets"] == [{"target": 0.95, "rounds": None, "reached": 0, "published": None}]
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
