"""One thread per rollout replica: it generates continuously while the driver does other work."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any, NamedTuple

from mindrl.batch.rollouts import Responses
from mindrl.errors import WorkerDiedError
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engines import Replica
from mindrl.trainer.weight_probe import WeightProbe


@dataclass(frozen=True, kw_only=True)
class Advanced:
    """A replica has generated for some time."""

    number: int
    indices: Sequence[int]
    """Indices of the requests that are complete, in the order of sending."""
    responses: Responses
    steps: int
    routes: Any = None
    """Reference to the routes of these requests, if the run replays them."""
    has_ended: bool = False
    """Whether the thread has stopped: the responses are of all requests, complete or not."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A replica has answered the probe of its weights."""

    number: int
    responses: Responses


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A replica has failed."""

    number: int
    error: BaseException
    """WorkerDiedError, or an unexpected error."""


class RoundEnd(NamedTuple):
    """When a round of a replica ends, and what is fetched then."""

    steps: int
    """After this many steps of its engine."""
    until: int | None
    """Or after this many completed requests; None: regardless of them."""
    has_routes: bool = False
    """Whether to fetch the routes of completed requests."""


class ReplicaThread:
    """Lets a replica generate until it is stopped; calls `report` with events on its own thread."""

    def __init__(
        self,
        replica: Replica,
        sampling: Sampling,
        round_end: RoundEnd,
        report: Callable[[Advanced | Probed | Lost], None],
        *,
        probe: WeightProbe,
    ) -> None:
        """Start without requests except those of the probe."""
        self.replica, self.sampling = replica, sampling
        self.round_end, self.report, self.probe = round_end, report, probe
        self.busy_seconds = 0.0
        self._changed, self._asked, self._stops = Condition(), list[Request](), False
        Thread(target=self._run, name=f"replica-{replica.number}", daemon=True).start()

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests."""
        with self._changed:
            self._asked += requests
            self._changed.notify()

    def stop(self) -> None:
        """Stop after the current round, and report what was generated."""
        with self._changed:
            self._stops = True
            self._changed.notify()

    def _run(self) -> None:
        number = self.replica.number
        try:
            began = time.perf_counter()
            self.report(Probed(number=number, responses=self.probe.draw(self.replica)))
            self.busy_seconds += time.perf_counter() - began
            asked = self._draw()
            began = time.perf_counter()
            responses = self.replica.take() if asked else Responses.of([], [], [])
            self.busy_seconds += time.perf_counter() - began
            self._report(range(asked), responses, has_ended=True)
        except Exception as error:  # noqa: BLE001
            # Passed to the driver, which raises errors other than the loss of a replica.
            self.report(Lost(number=number, error=error))

    def _draw(self) -> int:
        """Generate until stopped; return the number of requests received."""
        asked, left = 0, 0
        while (more := self._next(is_idle=left == 0)) is not None:
            began = time.perf_counter()
            if not asked:
                self.replica.begin(more, self.sampling)
            steps, until, _ = self.round_end
            found, responses = self.replica.advance(steps, more if asked else (), until)
            asked, left = asked + len(more), left + len(more) - len(found)
            self.busy_seconds += time.perf_counter() - began
            self._report(found, responses, steps=steps)
        return asked

    def _report(
        self,
        indices: Sequence[int],
        responses: Responses,
        *,
        steps: int = 0,
        has_ended: bool = False,
    ) -> None:
        """Report responses, with their routes."""
        fetches = self.round_end.has_routes and len(indices) > 0
        self.report(
            Advanced(
                number=self.replica.number,
                indices=indices,
                responses=responses,
                steps=steps,
                routes=self.replica.take_routes() if fetches else None,
                has_ended=has_ended,
            )
        )

    def _next(self, *, is_idle: bool) -> list[Request] | None:
        """Return new requests, None if stopped; wait for some if idle."""
        with self._changed:
            while is_idle and not self._asked and not self._stops:
                self._changed.wait()
            if self._stops:
                return None
            more, self._asked = self._asked, []
            return more


def is_loss(event: Lost) -> bool:
    """Return whether it is the loss of a replica, which others can compensate."""
    return isinstance(event.error, WorkerDiedError)
