"""Every algorithm, diagnostic and way of training on the emulated GPU: once, resumed, and on two devices."""

import subprocess
import sys

import pytest

from tests.gpu.cases import CASES
from tests.gpu.jobs import Jobs
from tests.gpu.runtime import unavailable
from tests.runs import REPOSITORY
from tests.test_every_algorithm import ALGORITHMS

pytestmark = pytest.mark.slow

#: cases with state that a checkpoint keeps, or with tensors that ranks exchange
STATEFUL = [
    *ALGORITHMS,
    *("FedAvg, server Adam", "diagnostics", "diagnostics of FedDNA"),
    *(name for name in CASES if name.endswith("in a folder")),
]
#: cases in which the host may wait for each client: files are written, clients are evaluated, weights are matched, or
#: an update is looked at before it is received
WAITING = ("folder", "evaluation", "diagnostics", "FedMA", "dropped")
CHEAP = [name for name in CASES if not any(word in name for word in WAITING)]


@pytest.fixture
def result(request, tmp_path_factory):
    """Return a function that returns a job's result. The jobs of one kind share a process."""
    kinds = {"compare": list(CASES), "resume": STATEFUL, "two devices": STATEFUL, "budget": CHEAP}
    groups = {kind: Jobs([f"{kind}: {name}" for name in names], tmp_path_factory) for kind, names in kinds.items()}
    return lambda kind, name: groups[kind].result(f"{kind}: {name}")


def test_the_tests_themselves_can_run_on_a_machine_with_a_gpu(alone):
    """Such a machine is emulated without kernels, so a test fails if it uses the GPU, or if it forks after that."""
    if reason := unavailable():
        pytest.skip(reason)
    tests = ["tests/test_equivalence.py", "tests/test_distributed.py", "tests/test_resume.py"]
    code = f"from tests.gpu import runtime; runtime.install(); import pytest; exit(pytest.main(['-q', *{tests}]))"
    process = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-4000:]
    assert "skipped" not in process.stdout


@pytest.mark.parametrize("case", CASES)
def test_a_run_on_a_gpu_equals_the_run_on_the_cpu(case, result):
    found = result("compare", case)
    assert (found["weights"], found["metrics"]) == ([], [])
    assert (found["devices"], found["launches"]) == (["cuda:0"], 0)


@pytest.mark.parametrize("case", STATEFUL)
def test_a_run_that_is_stopped_on_a_gpu_can_be_resumed_there_and_on_the_cpu(case, result):
    assert result("resume", case) == {"gpu": [], "cpu": []}


@pytest.mark.parametrize("case", STATEFUL)
def test_two_gpus_give_the_result_of_one_cpu(case, result):
    found = result("two devices", case)
    assert found["weights"] == found["metrics"] == [[], []]
    assert found["devices"] == [["cuda:0"], ["cuda:1"]]


@pytest.mark.parametrize("case", CHEAP)
def test_no_step_and_no_client_makes_the_host_wait_for_the_gpu(case, result):
    found = result("budget", case)
    assert not {"step", "client"} & set(found["small"]["waits"]), found["small"]["events"]
    assert found["small"]["waits"] == found["large"]["waits"]


@pytest.mark.parametrize("case", ["FedProx", "FedNNNN, all clients at once"])
def test_the_host_waits_for_the_gpu_once_per_round(case, result):
    run = result("budget", case)["large"]  # has two rounds
    assert set(run["waits"]) == {"setup", "round", "validation"}, run["events"]
    assert run["waits"]["round"] == 2, run["events"]
