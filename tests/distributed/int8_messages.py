"""What travels between the tests of engines in int8 and the processes that they fork.

Without vLLM: the test process must be able to read it.
"""

from dataclasses import dataclass

from shards_messages import Answer
from torch import Tensor

Rounded = tuple[Tensor, Tensor]
"""Numbers [N, K] in int8 and scales [N, 1] of a rank's part of a matrix."""


@dataclass(frozen=True, kw_only=True)
class Int8Bytes:
    """Bytes of an engine's weights on one rank."""

    planned: int
    """By the sharding of the rollout side."""
    reported: int
    """By the engine."""
    loaded: int
    """Measured with weights."""
    asleep: int
    awake: int
    """After a wake-up, before weights arrive."""


@dataclass(frozen=True, kw_only=True)
class Int8Life:
    """What one rank saw of an engine in int8, through its loads."""

    rounded: dict[str, dict[str, Rounded]]
    """Matrices by local name, by load: `first`, `later`, `after a sleep`."""
    answers: dict[str, list[Answer]]
    """To all prompts, by load."""
    whole: dict[str, str]
    """Dtypes of the tensors that are not rounded."""
    bytes: Int8Bytes
