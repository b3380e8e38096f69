"""What travels between the tests of bad numbers and the workers that they plant them in.

Without Megatron: the test process must be able to read it.
"""

from dataclasses import dataclass
from typing import Literal

Place = Literal[
    "actor_loss",
    "actor_gradient",
    "critic_loss",
    "critic_gradient",
    "rollout_logprobs",
    "actor_logprobs",
    "ref_logprobs",
    "critic_values",
    "reward_scores",
    "padding",
]
"""Where a number of a worker can be planted; `padding` is behind the end of a sequence."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A number to plant once."""

    place: Place
    value: float
    rank: int


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a rank keeps of a model that learns."""

    checksums: dict[str, str]
    """Of each weight, main weight and moment."""
    updates: int
    """Steps of the learning-rate schedule."""
