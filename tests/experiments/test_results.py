import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.experiments.cells import Published, Spread
from fl_lightning.experiments.results import compare_with_baseline, rounds_to
from fl_lightning.experiments.runs import Series
from tests.experiments.fakes import result, run

accuracies = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12)


def test_mean_and_standard_deviation_are_over_the_seeds():
    values = [[0.1, 0.7, 0.6], [0.2, 0.8, 0.8], [0.3, 0.75, 0.4]]
    score = result(*map(run, values)).scores["val/accuracy"]
    assert score.final.mean == pytest.approx(statistics.mean([0.6, 0.8, 0.4]))
    assert score.final.std == pytest.approx(statistics.stdev([0.6, 0.8, 0.4]))
    assert score.best.mean == pytest.approx(statistics.mean([0.7, 0.8, 0.75]))
    assert score.best.std == pytest.approx(statistics.stdev([0.7, 0.8, 0.75]))


def test_the_lowest_loss_is_the_best():
    assert result(run([3.0, 1.0, 2.0], "val/loss"), metrics=["val/loss"]).scores["val/loss"].best.mean == 1.0


@given(accuracies, st.floats(0, 1, width=32))
@settings(max_examples=50, deadline=None)
def test_the_first_round_at_the_target_counts_from_one(values, target):
    expected = next((number for number, value in enumerate(values, start=1) if value >= target), math.inf)
    series = run(values).scalars["val/accuracy"]
    assert rounds_to(series, target, "val/accuracy") == expected


@given(st.lists(accuracies, min_size=1, max_size=5), st.floats(0, 1, width=32))
@settings(max_examples=50, deadline=None)
def test_the_median_counts_a_target_that_was_not_reached_as_infinite(seeds, target):
    rounds = [next((n for n, value in enumerate(values, start=1) if value >= target), math.inf) for values in seeds]
    reach = result(*map(run, seeds), targets=[target]).targets[target]
    assert reach.rounds == statistics.median(rounds)
    assert reach.reached == sum(number < math.inf for number in rounds)


def test_a_loss_reaches_its_target_from_above():
    assert rounds_to(run([3.0, 1.0, 0.5], "val/loss").scalars["val/loss"], 1.0, "val/loss") == 2


def test_the_first_evaluated_round_at_the_target_is_reported_if_some_rounds_are_not_evaluated():
    assert rounds_to(Series(np.array([5, 10, 15]), np.array([0.1, 0.9, 0.95])), 0.9, "val/accuracy") == 10


def test_time_and_bytes_are_means_over_the_seeds():
    cell = result(run([0.5], seconds=10.0), run([0.5], seconds=30.0))
    assert cell.seconds == 20.0
    assert cell.bytes == 3e6


def test_a_target_that_is_met_exactly_is_reached():
    stored = float(np.float32(342 / 360))  # TensorBoard keeps 32 bits
    assert rounds_to(Series(np.array([1, 2]), np.array([0.5, stored])), 0.95, "val/accuracy") == 2


@pytest.mark.parametrize("metric", ["val/error", "test_perplexity"])
def test_smaller_errors_and_perplexities_are_better(metric):
    assert result(run([3.0, 1.0, 2.0], metric), metrics=[metric]).scores[metric].best.mean == 1.0


def reaching(rounds, **more):
    """Return a cell whose single run reaches 95 % in a given round."""
    return result(run([0.5] * (rounds - 1) + [0.95]), targets=[0.95], **more)


def test_the_reduction_of_rounds_is_that_of_fedadp_table_1():
    # MNIST, 5 IID + 5 non-IID (1): 133 rounds and 61 rounds; the paper's abstract says 54.1 %.
    baseline, adaptive = compare_with_baseline([reaching(133), reaching(61, name="FedAdp")], "FedAvg")
    assert round(100 * adaptive.targets[0.95].reduction, 1) == 54.1
    assert baseline.targets[0.95].reduction is None


def test_there_is_no_reduction_if_one_of_the_two_does_not_reach_the_target():
    never = result(run([0.5]), targets=[0.95], name="FedAdp")
    for results, row in (([reaching(3), never], "FedAvg"), ([never, reaching(3)], "FedAdp")):
        assert compare_with_baseline(results, row)[1].targets[0.95].reduction is None


def test_every_metric_is_compared_with_the_baseline_in_the_same_column():
    def cell(name, column, accuracy, loss):
        return result(
            run([accuracy], **{"val/loss": [loss]}), metrics=["val/accuracy", "val/loss"], name=name, column=column
        )

    results = [cell("A", "x", 0.5, 2.0), cell("B", "x", 0.75, 1.5), cell("A", "y", 0.25, 4.0), cell("B", "y", 0.5, 3.0)]
    compared = compare_with_baseline(results, "A")
    differences = [[score.minus_baseline for score in one.scores.values()] for one in compared]
    assert differences == [[None, None], [0.25, -0.5], [None, None], [0.25, -1.0]]
    assert [one.baseline for one in compared] == [None, "A", None, "A"]


def test_final_values_of_runs_that_end_at_a_target_are_not_compared():
    results = [reaching(4), reaching(2, name="FedAdp")]
    _, compared = compare_with_baseline(results, "FedAvg", final_values=False)
    assert compared.scores["val/accuracy"].minus_baseline is None
    assert compared.targets[0.95].reduction == 0.5


def test_a_baseline_without_columns_is_compared_with_all_columns():
    results = [result(run([0.5])), *(result(run([0.75]), name="FedAdp", column=column) for column in "12")]
    compared = compare_with_baseline(results, "FedAvg")
    assert [one.scores["val/accuracy"].minus_baseline for one in compared] == [None, 0.25, 0.25]


def test_a_row_without_columns_is_not_compared_with_a_baseline_that_has_some():
    results = [result(run([0.5]), name="Fixed"), result(run([0.75]), column="1")]
    assert compare_with_baseline(results, "FedAvg")[0].scores["val/accuracy"].minus_baseline is None


def test_a_missing_baseline_leaves_the_others_without_difference():
    results = [result(run([0.5], finished=False), targets=[0.4]), result(run([0.5]), name="B", targets=[0.4])]
    compared = compare_with_baseline(results, "FedAvg")[1]
    assert compared.scores["val/accuracy"].minus_baseline is compared.targets[0.4].reduction is None


def test_differences_to_published_numbers_are_ours_minus_theirs():
    published = Published({"val/accuracy": Spread(0.75, 0.1)}, {0.95: Spread(12), 0.99: Spread(20), 0.5: "N/A"})
    cell = result(run([0.5, 0.96]), targets=[0.5, 0.95, 0.99], published=published)
    assert cell.scores["val/accuracy"].minus_published == pytest.approx(0.21)
    assert [reach.minus_published for reach in cell.targets.values()] == [None, -10, None]


def test_a_divergence_is_best_when_it_is_smallest():
    tag = "divergence/statistics"
    assert result(run([0.3, 0.0578, 0.1], tag), metrics=[tag]).scores[tag].best.mean == 0.0578
