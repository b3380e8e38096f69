"""How the counter is taught, and how it answers."""

import dataclasses
import random
from typing import Literal, get_args

from mindrl.tiny.vision.squares import MOST_SQUARES

VisionFamily = Literal["qwen2_5_vl", "qwen3_vl"]
COUNTING_FAMILIES: tuple[VisionFamily, ...] = get_args(VisionFamily)
"""Families of the counter's network, the usual one first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CounterRecipe:
    """How the counter is taught."""

    family: VisionFamily = COUNTING_FAMILIES[0]
    careful_share: float = 0.3
    careless_share: float = 0.5
    """The rest of the answers are hasty."""
    updates: int = 300
    early: float = 0.7
    """Share of the updates in which all answers are careless: what a picture shows is the hardest
    to learn, and the other habits show little of it."""
    pictures_per_update: int = 32
    learning_rate: float = 3e-3
    """It falls to a twentieth."""
    held_out: int = 240
    """Pictures that are measured and never learned from."""
    skill_target: float = 0.9
    """Least share of held-out pictures for which the careless answer is the most likely one, and
    the careful answer the second."""

    def answer(self, count: int, rng: random.Random, *, is_early: bool = False) -> int:
        """Draw an answer to a picture of so many squares."""
        drawn = rng.random()
        if is_early:
            return count + 1
        if drawn < self.careful_share:
            return count
        if drawn < self.careful_share + self.careless_share:
            return count + 1
        return rng.randint(1, MOST_SQUARES + 1)
