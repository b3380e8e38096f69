"""What travels between the tests of adapters and the processes that they fork."""

from dataclasses import dataclass

from training_messages import Weights


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """What a rank's model with adapters did."""

    metrics: list[dict[str, float]]
    """Of each update."""
    factors: Weights
    """Local factors at the end."""
    merged: Weights
    """Local weights with what the factors add to them."""
    base: Weights
    """Local weights without."""
