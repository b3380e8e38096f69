"""What a run cannot go on without: pieces of main weights and moments, by logical names."""

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
"""Returns a box of a logical tensor or of its moments, float32 [as the box]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSlice:
    """A box of a logical tensor, or of its moments, where this rank keeps it."""

    tensor: str
    """Name of the logical tensor."""
    kind: StateKind
    box: Box
    """In the logical tensor."""
    stored: Tensor
    """What holds it, in one run of memory; float32, but for weights of what does not learn."""
    run: Bounds
    """Elements of `stored` that hold a block of the local tensor."""
    shape: Shape
    """Of that block."""
    local: Box
    """In that block."""
    axes: tuple[int, ...] | None
    """The dimension of the block that each logical one lies along; None keeps their order."""
    is_ours: bool
    """Whether this rank is the one, of all that keep it, that writes it."""

    def values(self, stored: Tensor) -> Tensor:
        """Look at it, with the logical dimensions.

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
    """Fill local tensors by their table, and what an optimizer keeps of them."""
    for name, entry in table.items():
        fill(local[name], entry, partial(read, "weight"))
    for each in slices:
        each.values(each.stored).copy_(read(each.kind, each.tensor, each.box))
