"""Which groups a step starts, and which it trains on. Needs no torch.

Shapes: G groups, the oldest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolBounds:
    """Number of open groups, and their maximum age."""

    per_step: int
    """Groups that a step trains on."""
    in_flight: int
    """Open groups, at least those of a step."""
    max_staleness: int
    """Maximum number of steps between the one that starts a group and the one that trains on it."""
    last_step: int
    """Last step of the run: no group starts that could not be trained on."""

    def to_begin(self, step: int, under_way: int) -> int:
        """Return the number of groups that a step starts."""
        in_time = min(1 + self.max_staleness, self.last_step - step + 1) * self.per_step
        return max(0, min(self.in_flight, in_time) - under_way)

    def to_begin_behind(self, step: int, under_way: int) -> int:
        """Return the number started while the step trains: they already have the step's age."""
        in_time = min(self.max_staleness, self.last_step - step) * self.per_step
        return max(0, min(self.in_flight, in_time) - under_way)

    def taken(self, step: int, born_G: Sequence[int], whole_G: Sequence[bool]) -> list[int] | None:
        """Return the groups that the step trains on; None if it must wait for others.

        They are the oldest complete ones. The remaining groups must be trained on in time, even if
        later steps only wait for their oldest.
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
