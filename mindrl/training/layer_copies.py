"""What a layer keeps for its backward pass, as far as engines differ. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerCopies:
    """How often a layer keeps what."""

    inner: int
    """Of the inner width of a gated part: gate and up, the activated gate, and their product."""
    rotation: int
    """Of the width of a head: sines and cosines of queries and keys, where each layer has some."""
    weighted: int
    """Of the hidden size, in float32, for each expert of a token: what it gave, by its weight."""
