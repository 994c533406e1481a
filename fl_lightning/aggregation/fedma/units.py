"""Units that change places together, and the tensors of a network as far as units are concerned."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fl_lightning.core.errors import MisconfigurationError


class Units:
    """Units of one or more layers that must have the same order, such as those that a residual connection adds up.

    Args:
        size: number of units.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._other: Units | None = None
        self._anchored: str | None = None
        self._rigid: str | None = None

    @property
    def root(self) -> "Units":
        """The object that stands for all the units that these have been merged with."""
        root = self
        while root._other is not None:
            root = root._other
        return root

    @property
    def anchored(self) -> str | None:
        """Why the units cannot change places; None if they can."""
        return self.root._anchored

    @property
    def rigid(self) -> str | None:
        """Why no unit can be added; None if one can."""
        return self.root._rigid or self.root._anchored

    def anchor(self, reason: str) -> None:
        """Make the units keep their places."""
        self.root._anchored = self.root._anchored or reason

    def fix_number(self, reason: str) -> None:
        """Keep the number of units, which may still change places."""
        self.root._rigid = self.root._rigid or reason

    def merge(self, other: "Units") -> None:
        """Make these and other units change places together."""
        one, two = self.root, other.root
        if one is not two:
            two._other = one
            one._anchored = one._anchored or two._anchored
            one._rigid = one._rigid or two._rigid


@dataclass(frozen=True)
class Stretch:
    """A stretch of a tensor's dimension: each unit in turn has ``block`` adjacent entries."""

    units: Units
    block: int = 1

    @property
    def length(self) -> int:
        """The number of entries."""
        return self.units.size * self.block


#: the stretches of one dimension, one after another; a concatenation has several
Axis = tuple[Stretch, ...]


@dataclass(frozen=True)
class Flow:
    """What is known about a tensor while data flows through the network.

    Args:
        axis: the units along one of the dimensions; None if no units can be told apart from anything else.
        dim: that dimension, counted from the last, which is -1.
        rank: number of dimensions; None if unknown.
        spread: whether each entry of the axis stands for several adjacent ones, as when the output of a convolution is
            flattened. Their number is known once a layer reads them.
        uniform: whether the tensor, or number, is the same for all units.
        stage: the last stage whose layers the tensor depends on; -1 before the first.
        source: the name of the parameter or buffer that the tensor is, if it is one.
    """

    axis: Axis | None = None
    dim: int = -1
    rank: int | None = None
    spread: bool = False
    uniform: bool = False
    stage: int = -1
    source: str | None = None

    @property
    def width(self) -> int:
        """The number of entries of the axis."""
        return sum(stretch.length for stretch in self.axis or ())

    def anchor(self, reason: str) -> None:
        """Make the units keep their places."""
        for stretch in self.axis or ():
            stretch.units.anchor(reason)

    def fix_number(self, reason: str) -> None:
        """Keep the number of units."""
        for stretch in self.axis or ():
            stretch.units.fix_number(reason)

    def from_last(self, dim: int) -> int:
        """Count a dimension from the last. A tensor of unknown rank is assumed to have two dimensions.

        Layers that read the tensor check its width, so a wrong assumption does not go unnoticed.
        """
        if dim < 0:
            return dim
        if self.rank is not None:
            return dim - self.rank
        if dim <= 1:
            return dim - 2
        raise CannotFollowError("the number of its dimensions is unknown")

    def read(self, width: int, dim: int) -> Axis | None:
        """Return the units of a dimension that a layer reads, with ``width`` entries; None if they keep their places.

        Raises:
            CannotFollowError: if the units are in another dimension, or their number does not fit.
        """
        if self.axis is None:
            return None
        if self.from_last(dim) != self.dim:
            raise CannotFollowError("the units are in another dimension")
        copies = width // self.width if self.spread else 1
        if copies * self.width != width:
            raise CannotFollowError(f"it reads {width} inputs, but there are {self.width} units")
        return tuple(Stretch(stretch.units, stretch.block * copies) for stretch in self.axis)


class CannotFollowError(Exception):
    """Raised for an operation after which units cannot be told apart; units that reach it keep their places."""


def merge_axes(axes: Iterable[Axis]) -> None:
    """Make the units of several axes change places together.

    Raises:
        CannotFollowError: if the axes are divided differently.
    """
    first, *others = axes
    for other in others:
        lengths = [[(stretch.units.size, stretch.block) for stretch in axis] for axis in (first, other)]
        if lengths[0] != lengths[1]:
            raise CannotFollowError("it combines units that are divided differently")
        for one, two in zip(first, other, strict=True):
            one.units.merge(two.units)


def combine(flows: list[Flow]) -> Flow:
    """Return the result of an operation that treats all entries alike, such as an addition or an activation."""
    if not flows:
        return Flow(uniform=True)
    stage = max(flow.stage for flow in flows)
    varying = [flow for flow in flows if not flow.uniform]
    if not varying:
        return Flow(uniform=True, stage=stage)
    widest = max((flow.width for flow in varying), default=0)
    for flow in [flow for flow in varying if flow.width == 1 < widest]:  # one channel for all units, such as a mask
        flow.anchor("it is the same for all units")
        varying.remove(flow)
    known = [flow for flow in varying if flow.axis is not None]
    if not known:
        return Flow(stage=stage, rank=next((flow.rank for flow in varying if flow.rank is not None), None))
    if len(known) < len(varying):
        raise CannotFollowError("it combines them with values that are tied to their places")
    first = known[0]
    if any((flow.dim, flow.spread) != (first.dim, first.spread) for flow in known):
        raise CannotFollowError("it combines units in different dimensions")
    merge_axes(flow.axis for flow in known if flow.axis is not None)
    rank = max((flow.rank for flow in known if flow.rank is not None), default=None)
    return replace(first, stage=stage, rank=rank, source=None)


def refuse(problem: str, fix: str) -> MisconfigurationError:
    """Return the error for a model that FedMA cannot match."""
    return MisconfigurationError(f"FedMA cannot match the units: {problem}: {fix}, or use another aggregator")
