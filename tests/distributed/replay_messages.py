"""What travels between the tests of router replay and the processes that they fork."""

from dataclasses import dataclass

from torch import Tensor
from training_messages import Weights


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Updates of one layout, on a rank."""

    metrics: list[dict[str, float]]
    logprobs: list[Tensor]
    """Log-probs of this rank's sequences before each update; empty without the head."""
    weights: list[Weights]
    """This rank's weights before each update."""
