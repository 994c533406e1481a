import csv
import io
import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.reporting.runs import Run, Series
from fl_lightning.reporting.suite import Published
from fl_lightning.reporting.table import as_cells, as_csv, as_json, as_markdown, duration, rounds_to, summarise

accuracies = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12)


def run(values, metric="val/accuracy", finished=True, seconds=60.0, **more) -> Run:
    scalars = {metric: values, "bytes/up_total": [1e6], "bytes/down_total": [2e6], **more}
    series = {tag: Series(np.arange(1, len(each) + 1), np.array(each, dtype=float)) for tag, each in scalars.items()}
    return Run("folder", {}, series, seconds, record={"finished": finished})


def table(lines):
    header, *rows = as_cells(lines)
    return [dict(zip(header, row, strict=True)) for row in rows]


def line(*runs, targets=(), metrics=("val/accuracy",), published=None, name="FedAvg", column=""):
    return summarise(name, column, runs, len(runs), metrics, targets, published)


def test_mean_and_standard_deviation_are_over_the_seeds():
    values = [[0.1, 0.7, 0.6], [0.2, 0.8, 0.8], [0.3, 0.75, 0.4]]
    score = line(*map(run, values)).scores["val/accuracy"]
    assert score.final.mean == pytest.approx(statistics.mean([0.6, 0.8, 0.4]))
    assert score.final.std == pytest.approx(statistics.stdev([0.6, 0.8, 0.4]))
    assert score.best.mean == pytest.approx(statistics.mean([0.7, 0.8, 0.75]))
    assert score.best.std == pytest.approx(statistics.stdev([0.7, 0.8, 0.75]))


def test_one_seed_has_no_deviation():
    assert table([line(run([0.5]))]) == [
        {"method": "FedAvg", "final": "50.00 %", "best": "50.00 %", "time": "60 s"} | {"sent": "3 MB", "seeds": "1"}
    ]


def test_of_a_loss_the_lowest_is_best():
    assert line(run([3.0, 1.0, 2.0], "val/loss"), metrics=["val/loss"]).scores["val/loss"].best.mean == 1.0


@given(accuracies, st.floats(0, 1, width=32))
@settings(max_examples=50, deadline=None)
def test_the_first_round_at_the_target_counts_from_one(values, target):
    expected = next((number for number, value in enumerate(values, start=1) if value >= target), math.inf)
    series = run(values).scalars["val/accuracy"]
    assert rounds_to(series, target, "val/accuracy") == expected


@given(st.lists(accuracies, min_size=1, max_size=5), st.floats(0, 1, width=32))
@settings(max_examples=50, deadline=None)
def test_the_median_takes_what_was_not_reached_as_infinite(seeds, target):
    rounds = [next((n for n, value in enumerate(values, start=1) if value >= target), math.inf) for values in seeds]
    reach = line(*map(run, seeds), targets=[target]).targets[target]
    assert reach.rounds == statistics.median(rounds)
    assert reach.reached == sum(number < math.inf for number in rounds)


def test_of_a_loss_the_target_is_reached_from_above():
    assert rounds_to(run([3.0, 1.0, 0.5], "val/loss").scalars["val/loss"], 1.0, "val/loss") == 2


def test_rounds_are_those_of_the_evaluations_where_not_every_round_has_one():
    assert rounds_to(Series(np.array([5, 10, 15]), np.array([0.1, 0.9, 0.95])), 0.9, "val/accuracy") == 10


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
def test_rounds_to_a_target_are_said_as_in_the_papers(seeds, text):
    assert table([line(*map(run, seeds), targets=[0.95])])[0]["rounds to 95 %"] == text


def test_published_values_stand_beside_ours():
    published = Published({"val/accuracy": 0.97}, {0.95: 12})
    (row,) = table([line(run([0.5]), targets=[0.95], published=published)])
    assert row["published"] == "97 %"
    assert row["published rounds"] == "12"


def test_published_words_are_kept():
    (row,) = table([line(run([0.5]), targets=[0.95], published=Published({}, {0.95: "N/A (92.1)"}))])
    assert row["published rounds"] == "N/A (92.1)"


def test_unfinished_runs_do_not_count():
    cell = line(run([0.5]), run([0.9], finished=False))
    assert cell.scores["val/accuracy"].final.mean == 0.5
    assert table([cell])[0]["seeds"] == "1 of 2"


def test_a_cell_of_which_nothing_finished_has_an_empty_line():
    rows = table([line(run([0.9], finished=False), targets=[0.95]), line(run([0.5]), name="FedNNNN", targets=[0.95])])
    assert rows[0] | {"method": "FedAvg", "final": "", "rounds to 95 %": "", "seeds": "0 of 1"} == rows[0]


def test_several_metrics_have_columns_of_their_own():
    (row,) = table([line(run([0.5], **{"val/f1": [0.25]}), metrics=["val/accuracy", "val/f1"])])
    assert row["final accuracy"] == "50.00 %"
    assert row["final f1"] == "25.00 %"
    assert "best f1" not in row


def test_values_beyond_one_are_no_percentages():
    assert table([line(run([31.5], "val/perplexity"), metrics=["val/perplexity"])])[0]["final"] == "31.5"


def test_time_and_bytes_are_means_over_the_seeds():
    cell = line(run([0.5], seconds=10.0), run([0.5], seconds=30.0))
    assert cell.seconds == 20.0
    assert cell.bytes == 3e6


def test_csv_has_plain_numbers():
    cells = [
        line(run([0.5]), run([0.6]), targets=[0.55, 0.95], column="IID", published=Published({"val/accuracy": 0.7}))
    ]
    (row,) = csv.DictReader(io.StringIO(as_csv(cells)))
    assert row["setting"] == "IID"
    assert float(row["val/accuracy final mean"]) == pytest.approx(0.55)
    assert float(row["val/accuracy published"]) == 0.7
    assert row["rounds to 0.55"] == ""
    assert row["reached 0.55"] == "1"
    assert float(row["bytes"]) == 3e6


def test_json_is_strict_and_has_null_for_what_was_not_reached():
    text = as_json("title", [line(run([0.5]), targets=[0.95])])
    (cell,) = json.loads(text, parse_constant=pytest.fail)["cells"]
    assert cell["targets"] == [{"target": 0.95, "rounds": None, "reached": 0, "published": None}]
    assert cell["scores"]["val/accuracy"]["final"] == {"mean": 0.5, "std": None}


def test_markdown_is_aligned():
    text = as_markdown([line(run([0.5])), line(run([0.625]), name="FedNNNN with a | in its name")])
    unescaped = [row.replace("\\|", "/|") for row in text.splitlines()]
    assert len({len(row) for row in unescaped}) == 1
    assert "FedNNNN with a \\| in its name" in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(41.4, "41 s"), (99.4, "99 s"), (200, "3 min"), (6000, "1 h 40 min"), (90_000, "25 h 00 min")]
)
def test_durations_are_said_as_one_says_them(seconds, text):
    assert duration(seconds) == text


def test_a_target_that_is_met_exactly_is_reached():
    stored = float(np.float32(342 / 360))  # TensorBoard keeps 32 bits
    assert rounds_to(Series(np.array([1, 2]), np.array([0.5, stored])), 0.95, "val/accuracy") == 2
