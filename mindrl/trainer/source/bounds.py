"""Which groups a step starts, and which it may train on. Needs no torch.

Shapes: G open groups, the oldest first.
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
    """Last step of the run; groups that no step could train on are not started."""
    in_order: bool = False
    """Whether groups are used in the order of the data, not of their completion."""

    def to_start(self, step: int, open_groups: int, *, found: int = 0, likely: int = 0) -> int:
        """Return the number of groups that a step starts.

        `found` groups were already chosen for the step; about `likely` others will fill it. Without
        staleness the step may start more than it needs, because no group stays open after it.
        """
        if not self.max_staleness:
            return (likely or self.per_step) - open_groups
        in_time = min(1 + self.max_staleness, self.last_step - step + 1) * self.per_step
        return max(0, min(max(self.in_flight, found + likely), in_time) - found - open_groups)

    def to_start_ahead(self, step: int, open_groups: int) -> int:
        """Return the number of groups started while a step trains, which is their start step."""
        in_time = min(self.max_staleness, self.last_step - step) * self.per_step
        return max(0, min(self.in_flight, in_time) - open_groups)

    def ready(
        self,
        step: int,
        start_step_G: Sequence[int],
        complete_G: Sequence[bool],
        needed: int | None = None,
    ) -> list[int] | None:
        """Return the groups that the step uses next; None if it must wait for others.

        These are the `needed` oldest complete groups. The remaining groups must be usable in time,
        even if later steps use them in order of age. Without staleness none may remain.
        """
        if not self.max_staleness:
            return [*range(len(complete_G))] if complete_G and all(complete_G) else None
        needed = self.per_step if needed is None else needed
        usable = [group for group, complete in enumerate(complete_G) if complete or self.in_order]
        used = usable[:needed]
        if len(used) < needed or not all(complete_G[group] for group in used):
            return None
        rest = [start for group, start in enumerate(start_step_G) if group not in {*used}]
        in_time = (
            index < self.per_step * (start + self.max_staleness - step)
            for index, start in enumerate(rest)
        )
        return used if all(in_time) else None
