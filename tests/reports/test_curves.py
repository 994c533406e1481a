import numpy as np
import pytest

from fl_lightning.experiments.runs import read_run
from fl_lightning.reports.curves import Curve, band, baseline_of, differences, group_runs
from tests.experiments.fakes import config, write_run


def curve(tmp_path, name, *seeds):
    runs = [
        write_run(tmp_path / name / f"seed_{seed}", values, settings=config(seed=seed))
        for seed, values in enumerate(seeds, start=1)
    ]
    return Curve(name, "", tuple(runs))


def test_runs_that_differ_only_in_their_seed_form_one_curve(tmp_path):
    runs = [write_run(tmp_path / f"version_{seed}", [0.5], settings=config(seed=seed)) for seed in (1, 2)]
    (found,) = group_runs(runs)
    assert found.runs == tuple(runs)


def test_a_run_of_an_earlier_version_lacks_settings_that_are_none_in_later_runs(tmp_path):
    earlier = write_run(tmp_path / "version_1", [0.5], settings=config(seed=1))
    later = write_run(tmp_path / "version_2", [0.5], settings=config(seed=2) | {"float32_matmul_precision": None})
    assert len(group_runs([earlier, later])) == 1


def test_runs_that_differ_in_a_setting_form_two_curves(tmp_path):
    runs = [write_run(tmp_path / f"version_{n}", [0.5], settings=config(epochs=n)) for n in (1, 2)]
    names = [found.name for found in group_runs(runs)]
    assert names == [f"{tmp_path.name}/version_1", f"{tmp_path.name}/version_2"]


def test_curves_have_the_shortest_names_that_tell_their_folders_apart(tmp_path):
    one = write_run(tmp_path / "runs/demo/version_0", [0.5], settings=config(epochs=1))
    other = write_run(tmp_path / "runs/demo-fednnnn/version_0", [0.5], settings=config(epochs=2))
    assert [found.name for found in group_runs([one, other])] == ["demo", "demo-fednnnn"]
    assert [found.name for found in group_runs([one])] == ["demo"]


def test_runs_of_a_comparison_have_the_names_of_its_suite(tmp_path):
    record = {"row": "FedNNNN (ours)", "column": "2 classes", "finished": True}
    (found,) = group_runs([write_run(tmp_path / "a", [0.5], record=record)])
    assert (found.name, found.setting) == ("FedNNNN (ours)", "2 classes")


def test_runs_without_a_config_are_never_treated_as_repetitions(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, [0.5])
        (tmp_path / name / "config.yaml").unlink()
    assert len(group_runs([read_run(tmp_path / name) for name in ("a", "b")])) == 2


def test_a_band_is_the_mean_and_deviation_over_the_seeds_that_have_the_round(tmp_path):
    found = band(curve(tmp_path, "a", [0.1, 0.5, 0.9], [0.3, 0.6]), "val/accuracy")
    np.testing.assert_array_equal(found.rounds, [1, 2, 3])
    np.testing.assert_allclose(found.mean, [0.2, 0.55, 0.9], rtol=1e-6)
    np.testing.assert_allclose(found.std[:2], [np.sqrt(0.02), np.sqrt(0.005)], rtol=1e-6)
    assert np.isnan(found.std[2])


def test_a_single_seed_has_no_deviation(tmp_path):
    assert band(curve(tmp_path, "a", [0.1, 0.5]), "val/accuracy").std is None


def test_a_tag_that_was_not_logged_has_no_band(tmp_path):
    assert band(curve(tmp_path, "a", [0.1]), "val/other") is None


def test_differences_are_taken_seed_by_seed(tmp_path):
    one, other = curve(tmp_path, "a", [0.5, 0.6], [0.1, 0.2]), curve(tmp_path, "b", [0.4, 0.5], [0.0, 0.1])
    found = band(one, "val/accuracy", minus=other)
    np.testing.assert_allclose(found.mean, [0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(found.std, [0.0, 0.0], atol=1e-7)


def test_curves_with_different_seeds_are_compared_by_their_means(tmp_path):
    one, other = curve(tmp_path, "a", [0.5, 0.6], [0.1, 0.2]), curve(tmp_path, "b", [0.4])
    found = band(one, "val/accuracy", minus=other)
    np.testing.assert_array_equal(found.rounds, [1])
    np.testing.assert_allclose(found.mean, [0.3 - 0.4], rtol=1e-5)
    assert found.std is None


@pytest.mark.parametrize(("aggregators", "baseline"), [(("FedNS", "FedAvg"), 1), (("FedNS", "FedAdp"), 0)])
def test_the_baseline_is_fedavg_or_the_first_curve(tmp_path, aggregators, baseline):
    curves = [
        Curve(name, "", (write_run(tmp_path / name, [0.5], settings=config(aggregator=name)),)) for name in aggregators
    ]
    assert baseline_of(curves) is curves[baseline]


def test_only_settings_that_differ_are_differences(tmp_path):
    curves = [Curve(str(n), "", (write_run(tmp_path / str(n), [0.5], settings=config(n, epochs=n)),)) for n in (1, 2)]
    assert differences(curves) == {"client.epochs": [1, 2]}


def test_runs_of_a_comparison_that_use_checkpoints_of_their_seed_form_one_curve(tmp_path):
    runs = [
        write_run(
            tmp_path / f"seed_{seed}",
            [0.5],
            settings=config(seed=seed, reference=f"out/Central/seed_{seed}/checkpoints/last.ckpt"),
            record={"row": "FedAvg", "column": "5 clients", "finished": True},
        )
        for seed in (1, 2)
    ]
    (found,) = group_runs(runs)
    assert found.runs == tuple(runs)


def test_the_named_curve_is_the_baseline(tmp_path):
    curves = [curve(tmp_path, name, [0.5]) for name in ("FedAvg", "mine")]
    assert baseline_of(curves, "mine") is curves[1]
    assert baseline_of(curves, "absent") is curves[0]
