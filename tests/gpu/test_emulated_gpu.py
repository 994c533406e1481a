"""On an emulated GPU, runs equal those on the CPU bit for bit, and the host waits for the GPU once per round.

``tests/gpu/emulator.py`` says how the emulation works and what it cannot show. ``test_every_case.py`` is slow and
complete.
"""

import pytest

from tests.gpu.checks import CHECKS
from tests.gpu.jobs import Jobs

COMPARED = ["FedNNNN by layer", "FedDNA", "augmented pictures"]
AT_ONCE = "Scaffold, all clients at once"
BUDGETED = ["FedAvg", "FedNNNN", "Scaffold", AT_ONCE]
JOBS = [
    *(f"check: {name}" for name in CHECKS),
    *(f"compare: {name}" for name in [*COMPARED, AT_ONCE]),
    *(f"budget: {name}" for name in BUDGETED),
    "failure: Scaffold, a client is dropped",
    "resume: Scaffold",
    "full device: Scaffold",
    "node: Scaffold",
    "two devices: FedBN",
]


@pytest.fixture
def jobs(tmp_path_factory):
    return Jobs(JOBS, tmp_path_factory)


@pytest.mark.parametrize("check", CHECKS)
def test_the_emulated_gpu_passes(check, jobs):
    assert jobs.result(f"check: {check}") == {}


@pytest.mark.parametrize("case", [*COMPARED, AT_ONCE])
def test_a_run_on_a_gpu_equals_the_run_on_the_cpu(case, jobs):
    result = jobs.result(f"compare: {case}")
    assert (result["weights"], result["metrics"]) == ([], [])
    assert (result["devices"], result["launches"]) == (["cuda:0"], 0)


@pytest.mark.parametrize("case", BUDGETED)
def test_no_step_and_no_client_makes_the_host_wait_for_the_gpu(case, jobs):
    result = jobs.result(f"budget: {case}")
    for run in result.values():
        assert set(run["waits"]) == {"setup", "round", "validation"}, run["events"]
    assert result["small"]["waits"] == result["large"]["waits"]


@pytest.mark.parametrize("case", BUDGETED)
def test_the_host_waits_for_the_gpu_once_per_round(case, jobs):
    run = jobs.result(f"budget: {case}")["large"]  # has two rounds
    assert run["waits"]["round"] == 2, run["events"]


def test_a_run_that_is_stopped_on_a_gpu_can_be_resumed_there_and_on_the_cpu(jobs):
    assert jobs.result("resume: Scaffold") == {"gpu": [], "cpu": []}


def test_a_client_that_sends_nan_stops_the_run_without_making_the_host_wait_for_each_client(jobs):
    result = jobs.result("failure: Scaffold, a client is dropped")
    assert result["message"] == "client 1 failed in round 2: head.bias is not finite"
    assert "client" not in result["waits"]


def test_memories_that_do_not_fit_on_the_device_stay_on_the_host_and_make_nobody_wait(jobs):
    result = jobs.result("full device: Scaffold")
    assert (result["weights"], result["metrics"]) == ([], [])
    assert set(result["waits"]) <= {"setup", "round", "validation"}, result["events"]


def test_two_gpus_give_the_result_of_one_cpu(jobs):
    result = jobs.result("two devices: FedBN")
    assert result["weights"] == result["metrics"] == [[], []]
    assert result["devices"] == [["cuda:0"], ["cuda:1"]]


def test_a_node_may_have_a_gpu_although_the_server_has_none(jobs):
    assert jobs.result("node: Scaffold") == {"weights": [], "node": "cuda:0"}
