"""Memory that an engine allocates for a trained model; imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainedBytes:
    """Bytes that one rank allocates for a model that it trains."""

    weights: int
    gradients: int
    optimizer: int
    """Both moments, plus float32 main weights if the weights are bfloat16; allocated by the first
    update."""
    step: int = 0
    """Upper bound of what the optimizer makes and frees in a step; 0 if each pass needs more."""
