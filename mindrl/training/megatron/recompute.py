"""Activations that are made twice, to be kept nowhere."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """Which activations the backward pass makes again, in Megatron's words."""

    granularity: Literal["selective", "full"] | None = None
    """`selective`: those of attention; `full`: those of whole layers; None: none."""
    method: Literal["uniform", "block"] | None = None
    """With `full`: runs of `num_layers` layers each, or so many single layers of a chunk."""
    num_layers: int | None = None
