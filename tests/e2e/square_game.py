"""A game about a row's picture, which then shows another one: by TRL's content blocks."""

import random
from typing import Any

from mindrl.tiny.vision.squares import MOST_SQUARES, QUESTION, draw_squares


class SquareGame:
    """Pays for the second answer: the number of squares that it has drawn."""

    def reset(self, **_: object) -> None:
        self.count = 0

    def step(self, text: str) -> tuple[list[dict[str, Any]] | str, float, bool]:
        if self.count:
            return "", float(str(self.count) in text), True
        self.count = random.randint(1, MOST_SQUARES)
        picture = draw_squares(self.count, random.Random(random.random()))
        return [{"type": "image", "image": picture}, {"type": "text", "text": QUESTION}], 0.0, False
