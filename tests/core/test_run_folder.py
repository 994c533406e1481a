from pathlib import Path

from fl_lightning.core.run_folder import RunFolder


def test_the_folder_of_a_checkpoint_is_the_one_that_holds_its_checkpoints(tmp_path):
    run = RunFolder(tmp_path / "version_0")
    assert RunFolder.of_checkpoint(run.checkpoint) == run


def test_the_folder_of_a_relative_checkpoint_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder.of_checkpoint(Path("version_0/checkpoints/last.ckpt")) == RunFolder(tmp_path / "version_0")


def test_a_config_without_checkpoints_beside_it_is_not_a_run(tmp_path):
    run = RunFolder(tmp_path)
    run.config.touch()
    assert not run.is_run
    run.checkpoint.parent.mkdir()
    assert run.is_run


def test_folders_with_a_config_or_events_are_found_once_at_any_depth(tmp_path):
    both, events, other = (RunFolder(tmp_path / name) for name in ("a/both", "b/c/events", "other"))
    for folder in (both, events, other):
        folder.path.mkdir(parents=True)
    both.config.touch()
    for folder in (both, events):
        (folder.path / "events.out.tfevents.1.host").touch()
    other.log.touch()
    found = list(RunFolder.below(tmp_path))
    assert len(found) == 2
    assert set(found) == {both, events}
    assert list(RunFolder.below(both.path)) == [both]
