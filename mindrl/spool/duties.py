"""What a rollout job draws next: the first part of a step that nobody has drawn or is at."""

from collections.abc import Callable
from dataclasses import dataclass

from mindrl.spool.folder import HowFar, Spool
from mindrl.spool.leases import Leases
from mindrl.spool.records import Place
from mindrl.spool.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A part of a step to be drawn; its lease is ours."""

    place: Place
    weights: Weights


@dataclass(kw_only=True)
class Duties:
    """Finds them; several rollout jobs of a spool share them by leases."""

    spool: Spool
    leases: Leases
    steps: int
    parts: int
    """Of a step."""
    version_of: Callable[[int], int]
    """Says which weights draw a step."""
    why_none: str = ""
    """What is waited for."""

    def take(self) -> Duty | None:
        """Return the next; None where there is none now, as `why_none` says.

        Raises:
            SpoolError: A marker is damaged.
        """
        progress, there = self.spool.progress(), {*self.spool.records.places()}
        for step in range(progress.confirmed + 1, self.steps + 1):
            lacking = [part for part in range(self.parts) if Place(step, part) not in there]
            if not lacking:
                continue
            weights = self.spool.weights.find(self.version_of(step))
            if weights is None:
                waits = f"step {step} waits for the weights behind {self.version_of(step)}"
                self.why_none = waits + self._if_nobody_trains()
                return None
            if self._is_full(step, progress):
                self.why_none = f"step {step} waits for room: the records have reached their limit"
                return None
            for part in lacking:
                if duty := self._leased(Place(step, part), weights):
                    return duty
        self.why_none = "other rollout jobs are at all that is left to draw"
        return None

    def finish(self, duty: Duty) -> None:
        """Let go of a duty that is done, or given up."""
        self.leases.give_back(str(duty.place))

    def _if_nobody_trains(self) -> str:
        if self.leases.living("train"):
            return ""
        return f"; no train job is at work on {self.spool.root}: mindrl job train starts one"

    def _leased(self, place: Place, weights: Weights) -> Duty | None:
        if self.leases.take(str(place)) is not None:
            return None
        # Whoever had it may have finished since the records were looked at.
        if (self.spool.records.root / str(place)).exists():
            self.leases.give_back(str(place))
            return None
        return Duty(place=place, weights=weights)

    def _is_full(self, step: int, progress: HowFar) -> bool:
        """Say whether the limit is reached; what the trainer waits for is always drawn."""
        most = self.spool.limits.max_bytes
        if most is None or step <= max(progress.gathering, progress.confirmed + 1):
            return False
        return self.spool.records.nbytes() >= most
