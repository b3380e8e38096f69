"""What travels between the tests of the training state and the processes that they fork."""

from dataclasses import dataclass

from training_messages import Weights

from mindrl.checkpoint.commits import WrittenFile


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a rank did and wrote."""

    metrics: list[dict[str, float]]
    weights: Weights
    """Behind the last update."""
    written: WrittenFile
