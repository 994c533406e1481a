"""Nodes of different kinds in one federation: some hold only a few classes, others hold all of them.

Wu, Wang. Fast-Convergent Federated Learning With Adaptive Weighting (FedAdp). 2021, sections III-B and V.
"""

import re
from typing import Any

import numpy as np

from fl_lightning.core.errors import MisconfigurationError
from fl_lightning.core.limits import check_number
from fl_lightning.core.randomness import generator_for
from fl_lightning.data.partitions.base import Indices, Partition, check_classes, checked_minimum
from fl_lightning.data.partitions.grouping import samples_by_class
from fl_lightning.data.partitions.sizes import Sizes, client_shares, whole_sizes


class MixedNodes(Partition):
    """A partition in which every node first draws its classes, and then its samples from those classes.

    Nodes draw independently of each other. Two nodes may hold the same class and even the same sample, but a node never
    holds a sample twice.

    Args:
        classes: one entry per node: the number of classes that it holds, ``iid`` for a node that draws from the whole
            data set, or a range such as ``1-5`` from which the number of classes is drawn. The paper's figure 2 is
            ``[1, 1, 1, 2, 2, iid, iid, iid, iid, iid]``; its case 1 is ``[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]``, and its
            case 2 is five nodes with ``1-5`` and five with ``6-10``.
        samples_per_node: number of samples per node; with a power law, the average.
        sizes: ``balanced`` gives all nodes the same number of samples; ``power_law`` gives node k a share proportional
            to (k + 1)^-exponent.
        exponent: exponent of the power law; 0 is balanced.
        min_samples: minimum per node; larger nodes give up samples.
    """

    def __init__(
        self,
        classes: list[int | str],
        samples_per_node: int,
        sizes: Sizes = "balanced",
        exponent: float = 1.0,
        min_samples: int = 1,
    ) -> None:
        if len(classes) == 0:
            raise MisconfigurationError("classes=[]: give data.partition.init_args.classes one entry per node")
        super().__init__(len(classes))
        check_number(
            "samples_per_node",
            samples_per_node,
            at_least=checked_minimum(min_samples),
            setting="data.partition.init_args.samples_per_node",
        )
        self.classes = classes
        self.samples_per_node = samples_per_node
        self.sizes = sizes
        self.exponent = exponent
        self.min_samples = min_samples
        self._ranges = [_class_range(entry) for entry in classes]
        self._sizes = whole_sizes(
            samples_per_node * len(classes), client_shares(len(classes), sizes, exponent), min_samples
        )

    def assign(self, labels: np.ndarray, seed: int) -> list[Indices]:
        present, samples_of = samples_by_class(labels)
        for limits in self._ranges:
            check_classes(limits[1] if limits else 1, len(present))
        generator = generator_for("partition", seed)
        by_class = np.concatenate(samples_of)
        counts = np.array([len(samples) for samples in samples_of])
        starts = np.cumsum(counts) - counts
        orders = generator.permuted(np.tile(np.arange(len(present)), (self.num_clients, 1)), axis=1)
        nodes = []
        for node, (limits, size) in enumerate(zip(self._ranges, self._sizes.tolist(), strict=True)):
            low, high = limits or (len(present), len(present))
            held = orders[node, : low if low == high else generator.integers(low, high, endpoint=True)]
            ends = counts[held].cumsum()
            if size > ends[-1]:
                raise MisconfigurationError(
                    f"samples_per_node={self.samples_per_node} gives node {node} {size} samples, but its {len(held)} of"
                    f" {len(present)} classes have {ends[-1]}: set data.partition.init_args.samples_per_node lower"
                )
            # Positions are drawn as if the held classes were concatenated; copying them together would be slower.
            drawn = generator.choice(ends[-1], size, replace=False, shuffle=False)
            which = ends.searchsorted(drawn, side="right")
            nodes.append(by_class[(starts[held] + counts[held] - ends)[which] + drawn])
        return nodes


def _class_range(entry: Any) -> tuple[int, int] | None:
    """Return the minimum and maximum number of classes of a node, or None if it draws from all classes."""
    if entry == "iid":
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", str(entry))
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high:
        raise MisconfigurationError(
            f"classes has the entry {entry!r}: set each entry of data.partition.init_args.classes to a number of"
            " classes (1 or more), a range such as 1-5, or iid"
        )
    return low, high
