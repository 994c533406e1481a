import json

import numpy as np
import pytest
import yaml

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.experiments.runs import evaluated_tags, find_runs, flat_settings, read_run
from tests.experiments.fakes import config, list_metrics, write_run
from tests.experiments.records import write_events


def test_rounds_are_counted_from_one(tmp_path):
    run = write_run(tmp_path / "run", [0.5, 0.6, 0.7])
    np.testing.assert_array_equal(run.scalars["val/accuracy"].rounds, [1, 2, 3])
    np.testing.assert_allclose(run.scalars["val/accuracy"].values, [0.5, 0.6, 0.7])
    assert run.rounds == 3


def test_a_round_that_was_interrupted_and_run_again_counts_once(tmp_path):
    write_run(tmp_path / "run", [0.5, 0.6, 0.1])
    write_events(tmp_path / "run", {"val/accuracy": [0.7, 0.8]}, start=5000.0, first=2, resumed=True)
    np.testing.assert_allclose(read_run(tmp_path / "run").scalars["val/accuracy"].values, [0.5, 0.6, 0.7, 0.8])


def test_the_duration_leaves_out_the_pause_before_a_run_is_resumed(tmp_path):
    run = write_run(tmp_path / "run", [0.5, 0.6])
    assert run.seconds == pytest.approx(20.0)
    write_events(tmp_path / "run", {"val/accuracy": [0.7, 0.8, 0.9]}, start=5000.0, first=2, resumed=True)
    assert read_run(tmp_path / "run").seconds == pytest.approx(20.0 + 30.0)


def test_truncated_events_are_read_up_to_the_last_whole_one(tmp_path):
    write_run(tmp_path / "run", [0.5, 0.6, 0.7])
    (events,) = (tmp_path / "run").glob("events*")
    events.write_bytes(events.read_bytes()[:-5])
    (tmp_path / "run" / "events.out.tfevents.9999.host.1.0").touch()
    assert read_run(tmp_path / "run").scalars["val/accuracy"].values == pytest.approx([0.5, 0.6, 0.7])


@pytest.mark.parametrize(
    ("rounds", "record", "finished"),
    [(2, None, True), (5, None, False), (5, {"finished": True}, True), (2, {"finished": False}, False)],
)
def test_a_run_is_finished_if_its_comparison_says_so_or_else_if_it_has_all_rounds(tmp_path, rounds, record, finished):
    run = write_run(tmp_path / "run", [0.5, 0.6], settings=config(rounds=rounds), record=record)
    assert run.finished is finished


def test_repetitions_differ_only_in_seed_and_checkpoint():
    one, other = config(seed=1), config(seed=2)
    other["ckpt_path"] = "somewhere.ckpt"
    other["data"]["seed"] = 5
    assert flat_settings(one) == flat_settings(other)
    assert flat_settings(one) != flat_settings(config(epochs=1))


def test_runs_are_found_below_a_folder_in_the_order_of_their_numbers(tmp_path):
    for seed in (10, 2, 1):
        write_run(tmp_path / "FedAvg" / f"seed_{seed}", [0.5], settings=config(seed=seed))
    runs, notes = find_runs([tmp_path])
    assert [run.seed for run in runs] == [1, 2, 10]
    assert notes == []


def test_a_run_that_is_given_twice_is_found_once(tmp_path):
    write_run(tmp_path / "a", [0.5])
    assert len(find_runs([tmp_path, tmp_path / "a"])[0]) == 1


def test_a_run_that_was_started_from_python_is_read_without_a_config(tmp_path):
    write_run(tmp_path / "run", [0.5])
    (tmp_path / "run" / "config.yaml").unlink()
    run = read_run(tmp_path / "run")
    assert run.config == {}
    assert run.finished


def test_a_damaged_record_is_ignored(tmp_path):
    write_run(tmp_path / "run", [0.5], record={"finished": True})
    (tmp_path / "run" / "compare.json").write_text("{")
    assert read_run(tmp_path / "run").record == {}


def _nothing(folder):
    pass


def _files(folder):
    (folder / "notes.txt").touch()


def _foreign_config(folder):
    (folder / "config.yaml").write_text(yaml.safe_dump({"defaults": ["hydra"]}))


def _broken_config(folder):
    (folder / "config.yaml").write_text("a: [")


def _foreign_events(folder):
    write_events(folder, {"loss": [1.0]})


def _no_round(folder):
    (folder / "config.yaml").write_text(yaml.safe_dump(config()))


FOREIGN = [
    (_nothing, "is empty: give a folder that fl-lightning fit or compare wrote"),
    (_files, "holds no run: give a folder that fl-lightning fit or compare wrote"),
    (_foreign_config, "is not a config of fl-lightning fit"),
    (_broken_config, "is not a config of fl-lightning fit"),
    (_foreign_events, "is not a run of a federation"),
    (_no_round, "has no completed round, because its run ended during the first"),
]


@pytest.mark.parametrize(("fill", "message"), FOREIGN)
def test_a_folder_that_is_not_a_run_is_refused_in_one_line_that_names_it(tmp_path, fill, message):
    folder = tmp_path / "strange"
    folder.mkdir()
    fill(folder)
    with pytest.raises(MisconfigurationError) as error:
        find_runs([folder])
    assert message in str(error.value)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("fill", "message"), FOREIGN[2:])
def test_a_folder_that_is_not_a_run_is_noted_beside_runs(tmp_path, fill, message):
    write_run(tmp_path / "good", [0.5])
    (tmp_path / "strange").mkdir()
    fill(tmp_path / "strange")
    runs, (note,) = find_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["good"]
    assert message in note


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(MisconfigurationError, match="nowhere: there is no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_the_record_of_a_comparison_is_kept(tmp_path):
    record = {"row": "FedAvg", "column": "IID", "seed": 1, "finished": True}
    assert write_run(tmp_path / "run", [0.5], record=json.loads(json.dumps(record))).record == record


def test_the_validation_metrics_are_the_ones_that_the_run_lists(tmp_path):
    write_run(tmp_path / "run", [0.5], "my_acc", fedfoo__x=[1.0], nll=[2.0], val_other=[3.0], train__loss=[4.0])
    list_metrics(tmp_path / "run", ["my_acc", "nll", "train/loss"])
    assert read_run(tmp_path / "run").evaluated == ("my_acc", "nll")


def test_a_listed_metric_that_was_never_logged_is_left_out(tmp_path):
    write_run(tmp_path / "run", [0.5], "my_acc")
    list_metrics(tmp_path / "run", ["my_acc", "shown_in_the_bar_only"])
    assert read_run(tmp_path / "run").evaluated == ("my_acc",)


@pytest.mark.parametrize("listed", [None, [], ["train/loss"], ["hp_metric"]])
def test_without_a_list_the_tags_of_validation_and_test_are_taken_by_name(tmp_path, listed):
    write_run(
        tmp_path / "run", [0.5], "val_acc", fedfoo__x=[1.0], test__loss=[2.0], hp_metric=[-1.0], train__loss=[4.0]
    )
    if listed is not None:
        list_metrics(tmp_path / "run", listed)
    assert set(read_run(tmp_path / "run").evaluated) == {"val_acc", "test/loss"}


def test_a_tag_of_several_runs_is_listed_once(tmp_path):
    runs = [write_run(tmp_path / name, [0.5], val__f1=[0.5]) for name in ("a", "b")]
    assert sorted(evaluated_tags(runs)) == ["val/accuracy", "val/f1"]
