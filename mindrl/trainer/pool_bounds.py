"""Which groups begin in a step, and which it trains on. Needs no torch.

Shapes: G groups, the oldest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolBounds:
    """How many groups are under way, and how old one may get."""

    per_step: int
    """Groups that a step trains on."""
    in_flight: int
    """Groups under way, at least those of a step."""
    max_staleness: int
    """Steps that may lie between the one that begins a group and the one that trains on it."""
    last_step: int
    """Of the run: no group begins that could not be trained on."""

    def to_begin(self, step: int, under_way: int) -> int:
        """Return how many groups begin in a step."""
        in_time = min(1 + self.max_staleness, self.last_step - step + 1) * self.per_step
        return max(0, min(self.in_flight, in_time) - under_way)

    def to_begin_behind(self, step: int, under_way: int) -> int:
        """Return how many begin while the step trains on what it took: they are its age already."""
        in_time = min(self.max_staleness, self.last_step - step) * self.per_step
        return max(0, min(self.in_flight, in_time) - under_way)

    def taken(self, step: int, born_G: Sequence[int], whole_G: Sequence[bool]) -> list[int] | None:
        """Return which groups the step trains on; None while others have to be waited for.

        They are the oldest that are whole. What stays behind must be trained on in time, even if
        later steps do nothing but wait for their oldest.
        """
        taken = [group for group, whole in enumerate(whole_G) if whole][: self.per_step]
        if len(taken) < self.per_step:
            return None
        trained = {*taken}
        behind = [born for group, born in enumerate(born_G) if group not in trained]
        in_time = (
            place < self.per_step * (born + self.max_staleness - step)
            for place, born in enumerate(behind)
        )
        return taken if all(in_time) else None
