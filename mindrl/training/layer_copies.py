"""Activations that a layer keeps for its backward pass and that differ by engine; no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerCopies:
    """Number of copies that a layer keeps of each kind of activation."""

    inner: int
    """Copies in the feed-forward width: gate and up, the activated gate, and their product."""
    rotation: int
    """Copies in the head width: sines and cosines of queries and keys, if kept per layer."""
    weighted: int
    """float32 copies in the hidden size for each expert of a token: its output times its weight."""
