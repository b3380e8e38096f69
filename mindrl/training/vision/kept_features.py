"""Features of pictures from a frozen vision tower, kept on the host.

Shapes: F features (tokens of a picture), H hidden size.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """A tower's output for one picture."""

    grids_13: Tensor
    """int64; frames, rows and columns of its patches."""
    outputs: tuple[Tensor, ...]
    """[F, H] each: output of the tower, then of its inner layers."""

    @property
    def nbytes(self) -> int:
        """Bytes of the outputs."""
        return sum(each.nbytes for each in self.outputs)


class KeptFeatures:
    """Features by picture number; the most recently used stay."""

    def __init__(self, most_bytes: int) -> None:
        """Set the largest number of bytes."""
        self.most_bytes, self._bytes = most_bytes, 0
        self._recent: OrderedDict[int, Features] = OrderedDict()

    def keep(self, number: int, features: Features) -> None:
        """Copy features to the host; drop those unused for longest beyond the limit."""
        # A copy: the features are a part of the tower's output for a whole pack.
        outputs = tuple(
            torch.empty_like(each, device="cpu").copy_(each) for each in features.outputs
        )
        self._recent[number] = Features(grids_13=features.grids_13, outputs=outputs)
        self._bytes += features.nbytes
        while self._bytes > self.most_bytes:
            self._bytes -= self._recent.popitem(last=False)[1].nbytes

    def of(self, number: int) -> Features | None:
        """Return the features of a picture; None if they are not kept."""
        found = self._recent.get(number)
        if found is not None:
            self._recent.move_to_end(number)
        return found

    def clear(self) -> None:
        """Drop all: the tower has other weights."""
        self._recent.clear()
        self._bytes = 0
