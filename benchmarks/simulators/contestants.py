"""The rows of the table: who takes part, in which environment and with which settings."""

import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent.parent / ".venv-peers"


@dataclass(frozen=True)
class Contestant:
    """A simulator with its settings.

    Args:
        label: name in the table and the picture.
        script: file in this folder that runs it.
        options: options of that script.
        peer: folder of its environment below ``.venv-peers``; by default, the environment of the driver.
        processes: number of processes that compute at the same time and share the threads.
        tasks: tasks in which it takes part.
    """

    label: str
    script: str
    options: tuple[str, ...] = ()
    peer: str | None = None
    processes: int = 1
    tasks: tuple[str, ...] = ("T1", "T2", "T3")

    @property
    def python(self) -> Path:
        """The interpreter of the contestant's environment."""
        return Path(sys.executable) if self.peer is None else PEERS / self.peer / "bin" / "python"


CONTESTANTS = {
    "plain": Contestant("plain PyTorch loop", "plain.py"),
    "ours": Contestant("fl_lightning", "ours.py"),
    "ours-vectorized": Contestant("fl_lightning, vectorized", "ours.py", ("execution=vectorized",)),
    "ours-channels-last": Contestant(
        "fl_lightning, channels_last", "ours.py", ("memory_format=channels_last",), tasks=("T2",)
    ),
    "ours-ddp-channels-last": Contestant(
        "fl_lightning, channels_last, 2 processes",
        "ours.py",
        ("memory_format=channels_last", "processes=2"),
        processes=2,
        tasks=("T2",),
    ),
    "ours-ddp-vectorized": Contestant(
        "fl_lightning, vectorized, 2 processes", "ours.py", ("execution=vectorized", "processes=2"), processes=2
    ),
    "ours-fast": Contestant(
        "fl_lightning, configs/fast.yaml",
        "ours.py",
        ("execution=auto", "memory_format=channels_last", "float32_matmul_precision=medium"),
    ),
    "ours-vectorized-bf16": Contestant(
        "fl_lightning, vectorized, bf16",
        "ours.py",
        ("execution=vectorized", "precision=bf16-mixed"),
        tasks=("T1", "T3"),
    ),
    "ours-ddp-vectorized-bf16": Contestant(
        "fl_lightning, vectorized, bf16, 2 processes",
        "ours.py",
        ("execution=vectorized", "precision=bf16-mixed", "processes=2"),
        processes=2,
        tasks=("T1", "T3"),
    ),
    "ours-ddp": Contestant("fl_lightning, 2 processes", "ours.py", ("processes=2",), processes=2),
    "pfl": Contestant("Apple pfl", "peer_pfl.py", peer="pfl"),
    "fluke": Contestant("fluke", "peer_fluke.py", peer="fluke"),
    "fedlab": Contestant("FedLab", "peer_fedlab.py", peer="fedlab"),
    "flower": Contestant("Flower with Ray", "peer_flower.py", peer="flower", processes=2),
}

#: simulators that cannot take part
ABSENT = {"FL-bench": "because PyPI has no package fl-bench or flbench"}
