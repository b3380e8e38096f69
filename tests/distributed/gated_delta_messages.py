"""What travels between the tests of gated delta nets and the process of the engine."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """Rows of the projections to keys and to values."""

    key: int
    value: int


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a layer, and the places for states."""

    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    convolution: int
    slots: int

    @property
    def rows(self) -> Rows:
        return Rows(self.key_heads * self.key_width, self.value_heads * self.value_width)


@dataclass(frozen=True, kw_only=True)
class Step:
    """New tokens of some requests; those with one new token and a state come first."""

    lengths: list[int]
    slots: list[int]
    known: list[bool]
    decodes: int
    mixed: Tensor
    """Inputs of the convolution: queries, keys, values."""
    rate: Tensor
    decay: Tensor
