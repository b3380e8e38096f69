"""What an engine says of the memory of a model that it trains. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainedBytes:
    """What one rank allocates for a model that it trains."""

    weights: int
    gradients: int
    optimizer: int
    """Both moments, and in bfloat16 the main weights where weights are bfloat16; once an update has
    made them."""
