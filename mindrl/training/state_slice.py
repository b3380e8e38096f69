"""The training state of a checkpoint: slices of main weights and moments, by logical name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from mindrl.checkpoint.readers import fill
from mindrl.models.orientation import oriented
from mindrl.models.placement import Bounds, Box, Shape, ShardingTable

StateKind = Literal["weight", "exp_avg", "exp_avg_sq"]
"""A weight as the optimizer keeps it, and Adam's two moments."""

ReadState = Callable[[StateKind, str, Box], Tensor]
"""Returns a box of a logical tensor or of one of its moments: float32, in the box's shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSlice:
    """A box of a logical tensor, or of one of its moments, that this rank keeps."""

    tensor: str
    """Name of the logical tensor."""
    kind: StateKind
    box: Box
    """Box of the logical tensor."""
    stored: Tensor
    """Contiguous tensor that holds the slice; float32, except for weights of a frozen model."""
    run: Bounds
    """Range of elements of `stored` that holds one block of the local tensor."""
    shape: Shape
    """Shape of that block."""
    local: Box
    """Box of that block."""
    axes: tuple[int, ...] | None
    """Dimension of the block for each logical dimension; None keeps their order."""
    is_ours: bool
    """Whether this rank writes the slice; exactly one of the ranks that keep it does."""

    def values(self, stored: Tensor) -> Tensor:
        """Return a view of the slice in logical dimensions.

        Args:
            stored: `stored` or a copy of it.
        """
        block = stored.view(-1)[slice(*self.run)].view(self.shape)
        return oriented(block, self.local, self.axes)


def take_over(
    read: ReadState,
    local: Mapping[str, Tensor],
    table: ShardingTable,
    slices: Iterable[StateSlice],
) -> None:
    """Fill local tensors by their table, and the optimizer's tensors by their slices."""
    for name, entry in table.items():
        fill(local[name], entry, partial(read, "weight"))
    for each in slices:
        each.values(each.stored).copy_(read(each.kind, each.tensor, each.box))
