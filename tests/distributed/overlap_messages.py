"""What travels between the tests of overlap and the processes that they fork."""

from dataclasses import dataclass

from training_messages import Weights


@dataclass(frozen=True, kw_only=True)
class Overlapped:
    """What a few updates did, and when their messages were sent."""

    metrics: list[dict[str, float]]
    weights: Weights
    """Whole, at the end."""
    local: Weights
    """Of the last update, before the weights were complete."""
    buckets: int
    early: list[int]
    """Buckets whose reduction had begun before the backward pass ended, for each update."""
    device_bytes: list[int]
    """Storage of all regions while they were off the device, for each swap."""
    train_bytes: tuple[int, int, int]
    """Storage of weights, gradients and optimizer."""
