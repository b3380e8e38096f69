"""Next work of a rollout job: the first part of a step that is neither done nor leased."""

from collections.abc import Callable
from dataclasses import dataclass

from mindrl.spool.folder import Spool, SpoolProgress
from mindrl.spool.leases import Leases
from mindrl.spool.records import Place
from mindrl.spool.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A part of a step to generate, leased by this process."""

    place: Place
    weights: Weights


@dataclass(kw_only=True)
class Duties:
    """Finds and leases work; several rollout jobs of a spool share it by leases."""

    spool: Spool
    leases: Leases
    steps: int
    parts: int
    """Parts per step."""
    version_of: Callable[[int], int]
    """Returns the version of the weights that must sample a step."""
    why_none: str = ""
    """What the job is waiting for."""

    def take(self) -> Duty | None:
        """Return the next work; None if there is none now, with the reason in `why_none`.

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
                waits = f"step {step} waits for the weights of step {self.version_of(step)}"
                self.why_none = waits + self._if_nobody_trains()
                return None
            if self._is_full(step, progress):
                self.why_none = f"step {step} waits: the records have reached their size limit"
                return None
            for part in lacking:
                if duty := self._leased(Place(step, part), weights):
                    return duty
        self.why_none = "other rollout jobs generate all remaining responses"
        return None

    def finish(self, duty: Duty) -> None:
        """Release work that is done or abandoned."""
        self.leases.give_back(str(duty.place))

    def _if_nobody_trains(self) -> str:
        if self.leases.living("train"):
            return ""
        return f"; {self.spool.root} has no running train job: start one with mindrl job train"

    def _leased(self, place: Place, weights: Weights) -> Duty | None:
        if self.leases.take(str(place)) is not None:
            return None
        # The previous holder may have finished since the records were listed.
        if (self.spool.records.root / str(place)).exists():
            self.leases.give_back(str(place))
            return None
        return Duty(place=place, weights=weights)

    def _is_full(self, step: int, progress: SpoolProgress) -> bool:
        """Return whether the limit is reached; work that the trainer waits for always proceeds."""
        most = self.spool.limits.max_bytes
        if most is None or step <= max(progress.gathering, progress.confirmed + 1):
            return False
        return self.spool.records.nbytes() >= most
