"""Runs jobs on the emulated GPU, in a process of its own: ``python -m tests.gpu.child RESULTS.json JOB...``.

A job is written as ``kind: case``, for example ``compare: FedAvg``. The results are JSON, by job; a job that failed has
its traceback as ``error``. Every job is forked from a process that has imported everything but has not used CUDA yet.
"""

import json
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu import runtime

runtime.install(devices=2)

import torch  # noqa: E402

from tests.gpu import cases, checks, nodes  # noqa: E402

_FORK = multiprocessing.get_context("fork")


def _renew_thread_pool() -> None:
    """Let torch replace its pool of threads, which a fork does not inherit.

    It would do so at the first backward pass, in one thread per device at once, which sometimes aborts the process.
    """
    torch.set_num_threads(1)


def two_devices(name: str) -> dict[str, Any]:
    """Run a case on two devices, with one rank each, and return how it differs from one process on the CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [Path(tempfile.mkdtemp(), f"rank_{rank}.pt") for rank in range(2)]
    ranks = [_FORK.Process(target=_rank, args=(name, rank, port, file)) for rank, file in enumerate(files)]
    for process in ranks:
        process.start()
    expected, trainer = cases.fit(cases.CASES[name](), "cpu", Path(tempfile.mkdtemp()))
    for process in ranks:
        process.join(120)
        process.kill()
    results = [torch.load(file) for file in files]
    for result in results:
        if "error" in result:
            return {"error": result["error"]}
    return {
        "weights": [cases.differences(expected, result["state"]) for result in results],
        "metrics": [cases.distant_numbers(cases.numbers(trainer), result["metrics"]) for result in results],
        "devices": [result["devices"] for result in results],
        "copies": [result["copies"] for result in results],
    }


def _rank(name: str, rank: int, port: int, file: Path) -> None:
    from torch.distributed import distributed_c10d

    distributed_c10d._get_object_coll_device = lambda group=None: "cuda"  # as with NCCL
    _renew_thread_pool()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ.update(address, LOCAL_RANK=str(rank))
    try:
        torch.save(cases.train_rank(name), file)
    except BaseException:
        torch.save({"error": f"rank {rank}: {traceback.format_exc()}"}, file)
        os._exit(1)  # the other rank may wait for this one


def check(name: str) -> dict[str, Any]:
    """Run a check, which raises an error if it fails."""
    checks.CHECKS[name]()
    return {}


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "compare": cases.compare,
    "budget": cases.budget,
    "check": check,
    "failure": cases.failure,
    "full device": cases.full_device,
    "node": nodes.node,
    "resume": cases.resume,
    "two devices": two_devices,
}


def _do(job: str, file: Path) -> None:
    kind, _, name = job.partition(": ")
    _renew_thread_pool()
    try:
        result = KINDS[kind](name)
    except Exception:
        result = {"error": traceback.format_exc()}
    file.write_text(json.dumps(result))


def _seconds() -> float:
    """Return how long jobs have kept the processor busy."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(results: str, *jobs: str) -> None:
    """Run the jobs one after the other and write their results."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    collected = {}
    for job in jobs:
        file = Path(tempfile.mkdtemp(), "result.json")
        process = _FORK.Process(target=_do, args=(job, file))
        began = _seconds()
        process.start()
        process.join()
        print(f"{job}: {_seconds() - began:.1f} s", flush=True)
        ended = {"error": f"the process of {job!r} ended with code {process.exitcode}"}
        collected[job] = json.loads(file.read_text()) if file.exists() else ended
    Path(results).write_text(json.dumps(collected, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
