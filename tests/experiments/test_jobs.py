"""Runs are scheduled, with a process that only pretends to train."""

import fcntl
import json
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.run_folder import RunFolder
from fl_lightning.experiments import jobs
from fl_lightning.experiments.cells import Cell
from fl_lightning.experiments.jobs import Task, run_all
from fl_lightning.experiments.runs import read_run
from tests.runs import REPOSITORY


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs, "FIT", (sys.executable, "-m", "tests.experiments.fake_fit"))

    def make(name: str, *moment: str, rounds: int = 4, needs: str = "") -> Task:
        folder = tmp_path / name
        return Task(
            Cell(name, "", (), needs=tuple(needs)),
            1,
            RunFolder(folder),
            (str(folder), str(rounds), *moment),
            rounds,
            needs=tuple(RunFolder(tmp_path / one) for one in needs),
        )

    return make


def log(task):
    return task.folder.log.read_text()


def record(task):
    return json.loads(task.folder.record.read_text())


def test_all_tasks_run_and_are_recorded_as_finished(task):
    tasks = [task("a"), task("b")]
    assert run_all(tasks, 2) == []
    assert [record(one)["finished"] for one in tasks] == [True, True]
    assert [len(one.folder.checkpoint.read_text()) for one in tasks] == [1, 1]


def test_a_finished_run_is_not_run_again(task, capsys):
    run_all([task("a")], 1)
    before = log(task("a"))
    run_all([task("a")], 1)
    assert log(task("a")) == before
    assert "1 of 1 runs have already finished" in capsys.readouterr().out


def test_jobs_share_the_cores(task, monkeypatch):
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda _: set(range(8)))
    run_all([task("a")], 3)
    assert "threads 2," in log(task("a"))


def test_a_failure_is_shown_with_the_end_of_its_log_and_the_others_continue(task, capsys):
    failing, other = task("a", "fail"), task("b")
    assert run_all([failing, other], 1) == [failing]
    out = capsys.readouterr().out
    assert "a, seed 1: FAILED (exit code 1)\n" in out
    assert "    ValueError: too bad\n" in out
    assert out.count("bar") == 1  # only the last state of the progress bar
    assert not record(failing)["finished"]
    assert record(other)["finished"]


def test_a_failed_run_resumes_from_its_last_round(task):
    run_all([task("a", "fail")], 1)
    assert run_all([task("a", "fail")], 1) == []
    assert "from round 2" in log(task("a"))


def test_an_interrupt_stops_the_processes_and_the_next_comparison_resumes_them(task, monkeypatch):
    hanging = task("a", "hang")

    def interrupt(seconds):
        time.sleep(0.01)
        if hanging.folder.checkpoint.is_file() and hanging.folder.checkpoint.read_text() == "2":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
        with pytest.raises(KeyboardInterrupt):
            run_all([hanging], 1)
    assert not record(hanging)["finished"]
    assert run_all([hanging], 1) == []
    assert "from round 2" in log(hanging)
    assert read_run(hanging.folder.path).rounds == 4


def test_runs_of_a_comparison_in_the_background_which_ignore_ctrl_c_end_too(task, monkeypatch):
    monkeypatch.setattr(jobs, "_GRACE_PERIOD", 60.0)
    hanging = task("a", "hang")

    def terminate(seconds):
        time.sleep(0.01)
        if hanging.folder.checkpoint.is_file() and hanging.folder.checkpoint.read_text() == "2":
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the shell does for a job that is started with &
    try:
        monkeypatch.setattr(jobs, "time", SimpleNamespace(sleep=terminate, monotonic=time.monotonic))
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_all([hanging], 1)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert time.monotonic() - begin < 50  # otherwise, the run hangs for 60 s


def test_a_run_without_a_whole_round_starts_again(task):
    run_all([task("a")], 1)
    one = task("a")
    one.write_record(finished=False)
    one.folder.checkpoint.unlink()
    one.folder.config.write_text("cut off")
    run_all([one], 1)
    assert not one.folder.config.exists()
    assert log(one).count("from round 0") == 2


def test_a_folder_in_which_another_process_runs_is_refused(task):
    one = task("a")
    one.folder.path.mkdir()
    with one.folder.log.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MisconfigurationError, match="is in use by another process"):
            run_all([one], 1)


def test_progress_is_printed_in_lines_without_a_terminal(task, capsys, monkeypatch):
    monkeypatch.setattr(jobs, "_PROGRESS_INTERVAL", 0.0)
    run_all([task("a", "late")], 1)
    out = capsys.readouterr().out
    assert "0 of 1 runs, 0 of 4 rounds" in out
    assert "[1/1] a, seed 1: 4 rounds" in out


@pytest.mark.parametrize("count", [1, 3])
def test_a_run_starts_after_those_that_it_needs(task, count):
    tasks = [task("c", needs="b"), task("b", needs="a"), task("a"), task("d")]
    assert run_all(tasks, count) == []
    c, b, a, _ = (one.folder for one in tasks)
    assert c.log.stat().st_mtime > b.checkpoint.stat().st_mtime
    assert b.log.stat().st_mtime > a.checkpoint.stat().st_mtime


def test_a_run_that_needs_a_failed_one_is_not_started(task, capsys):
    tasks = [task("c", needs="b"), task("b", needs="a"), task("a", "fail"), task("d")]
    assert [one.cell.row for one in run_all(tasks, 2)] == ["a", "b", "c"]
    out = capsys.readouterr().out
    assert "] b, seed 1: NOT RUN, because it needs a, seed 1\n" in out
    assert "] c, seed 1: NOT RUN, because it needs b, seed 1\n" in out
    assert not tasks[1].folder.path.exists()
    assert record(tasks[3])["finished"]


def test_a_run_that_needs_a_finished_one_starts(task):
    run_all([task("a")], 1)
    assert run_all([task("b", needs="a")], 1) == []
    assert record(task("b"))["finished"]


def test_after_a_failure_the_next_comparison_runs_both(task):
    tasks = [task("b", needs="a"), task("a", "fail")]
    run_all(tasks, 2)
    assert run_all(tasks, 2) == []
    assert record(task("b"))["finished"]
