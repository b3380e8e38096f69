"""Next work of a rollout job: the first request that is neither answered nor leased."""

from dataclasses import dataclass

from mindrl.spool.folder import Spool, SpoolProgress
from mindrl.spool.leases import Leases
from mindrl.spool.requests import SpoolRequest
from mindrl.spool.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A request to answer, leased by this process."""

    request: SpoolRequest
    weights: Weights


@dataclass(kw_only=True)
class Duties:
    """Finds and leases work; several rollout jobs of a spool share it by leases."""

    spool: Spool
    leases: Leases
    why_none: str = ""
    """What the job is waiting for."""

    def take(self) -> Duty | None:
        """Return the next work; None if there is none now, with the reason in `why_none`.

        Raises:
            SpoolError: A marker is damaged.
        """
        progress, answered = self.spool.progress(), {*self.spool.records.answered()}
        found = self.spool.requests
        pending = (each for each in found.prompts() if each.end > progress.trained)
        requests = [*filter(None, (found.read(each) for each in pending if each not in answered))]
        if not requests:
            self.why_none = f"waits for requests of the train job{self._without_train_job()}"
            return None
        for request in requests:
            weights = self.spool.weights.find(request.version)
            if weights is None:
                waits = f"step {request.step} waits for the weights of step {request.version}"
                self.why_none = waits + self._without_train_job()
                return None
            if self._is_full(request, progress):
                waits = f"step {request.step} waits: the records have reached their size limit"
                self.why_none = waits
                return None
            if duty := self._leased(request, weights):
                return duty
        self.why_none = "other rollout jobs generate all remaining responses"
        return None

    def finish(self, duty: Duty) -> None:
        """Release work that is done or abandoned."""
        self.leases.give_back(str(duty.request.prompts))

    def _without_train_job(self) -> str:
        if self.leases.living("train"):
            return ""
        return f"; {self.spool.root} has no running train job: start one with mindrl job train"

    def _leased(self, request: SpoolRequest, weights: Weights) -> Duty | None:
        if self.leases.take(str(request.prompts)) is not None:
            return None
        # The previous holder may have finished since the records were listed.
        if (self.spool.records.root / str(request.prompts)).exists():
            self.leases.give_back(str(request.prompts))
            return None
        return Duty(request=request, weights=weights)

    def _is_full(self, request: SpoolRequest, progress: SpoolProgress) -> bool:
        """Return whether the limit is reached; work that the trainer waits for always proceeds."""
        most = self.spool.limits.max_bytes
        if most is None or request.prompts.first < progress.awaited:
            return False
        return self.spool.records.nbytes() >= most
