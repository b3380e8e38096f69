"""Rollout replicas on their own devices: start, registration and replacement."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Any

from mindrl.batch.rollouts import Responses
from mindrl.errors import ClusterError, InterruptedRunError, MindrlError
from mindrl.rollout.engine import Request, Sampling
from mindrl.workers.calls import Workers

StartReplica = Callable[[int, Callable[[], None]], Workers]
"""Starts the workers of the replica with this number; calls the second argument repeatedly."""


@dataclass
class ReplicaGroup:
    """Workers of one replica; after its loss, all calls raise WorkerDiedError."""

    number: int
    group: Workers
    version: int | None = None
    """Version of its weights; None before the first."""

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start requests, as `RolloutEngine.begin`."""
        self._call("begin_sequences", requests, sampling)

    def advance(
        self, steps: int, more: Sequence[Request], until: int | None = None
    ) -> tuple[list[int], Responses]:
        """Run steps, as `RolloutEngine.advance`; return completed indices and their responses."""
        whole: tuple[list[int], Responses] = self._call("advance_sequences", steps, more, until)
        return whole

    def take(self) -> Responses:
        """Return the sampled tokens, as `RolloutEngine.take_back`."""
        responses: Responses = self._call("take_sequences")
        return responses

    def take_routes(self) -> Any:
        """Return a reference to the routes of requests that ended since the last call."""
        return self._call("take_routes")

    def _call(self, method: str, *arguments: Any) -> Any:
        return self.group.call(method, [arguments] * self.group.size, answering=(0,))[0]


@dataclass(frozen=True, kw_only=True)
class Members:
    """Replicas of a fleet that join and leave while the run lives."""

    at_start: int
    """Number of replicas that a run waits for at its start."""
    start_seconds: float
    """Longest wait for them."""
    has_left: Callable[[int], bool]
    """Returns whether a replica must no longer be used; another may then take its number."""


class ReplicaFleet:
    """All replicas of a run. They start in the background, in parallel."""

    def __init__(
        self,
        start: StartReplica,
        count: int,
        most_restarts: int,
        notify: Callable[[str], None],
        members: Members | None = None,
    ) -> None:
        """Start them. A replica lost more than `most_restarts` times in a row is given up."""
        self.start, self.count, self.members = start, count, members
        self.most_restarts, self.notify = most_restarts, notify
        self.up: dict[int, ReplicaGroup] = {}
        """Started replicas by number, with or without weights."""
        self.coming: dict[int, Future[Workers]] = {}
        self.losses: Counter[int] = Counter()
        """Consecutive losses; reset once a replica has lived from one publishing to the next."""
        self.given_up: set[int] = set()
        self.is_over = Event()
        self.threads = ThreadPoolExecutor(count, thread_name_prefix="replica-start")
        for number in range(count):
            self._begin(number, None)

    def wait_for_start(self) -> None:
        """Wait for the first start of all, or of the members; a failed start is not repeated.

        Raises:
            MindrlError: As raised when a replica starts, or none has started in time.
        """
        least, seconds = None, None
        if self.members is not None:
            least, seconds = self.members.at_start, self.members.start_seconds
        try:
            for future in islice(as_completed(self.coming.values(), seconds), least):
                future.result()
        except TimeoutError as error:
            raise ClusterError(f"no rollout replica started within {seconds} s") from error
        for number in [number for number, future in self.coming.items() if future.done()]:
            self.up[number] = ReplicaGroup(number, self.coming.pop(number).result())

    def dismiss(self) -> None:
        """Stop using replicas that have left, between their requests; others may replace them."""
        members = self.members
        if members is None:
            return
        for number in [each for each in (*self.up, *self.given_up) if members.has_left(each)]:
            self.notify(f"rollout replica {number} has left")
            self.given_up.discard(number)
            self.losses[number] = 0
            self._begin(number, self.up.pop(number, None))
            if not self.up:
                self.notify("warning: no rollout replica is left; the run waits for one")

    def take_up(self, wait_seconds: float = 0.0) -> None:
        """Register replicas that have started; wait up to `wait_seconds` for the first.

        Raises:
            ClusterError: There is none, and none will start.
        """
        if self.coming:
            wait(self.coming.values(), wait_seconds, return_when="FIRST_COMPLETED")
        for number in [number for number, future in self.coming.items() if future.done()]:
            future = self.coming.pop(number)
            try:
                group = future.result()
            except MindrlError as error:
                self.replace(number, f"cannot start: {error}")
                continue
            self.up[number] = ReplicaGroup(number, group)
            again = " again" if self.losses[number] else ""
            self.notify(f"rollout replica {number} is running{again}")
        self.require_some()

    def replace(self, number: int, why: str) -> None:
        """Start a replacement in the background, unless one is starting."""
        if number in self.coming or number in self.given_up:
            return
        lost = self.up.pop(number, None)
        self.losses[number] += 1
        self.notify(f"warning: rollout replica {number} is lost: {why}")
        if self.losses[number] > self.most_restarts:
            limit = f"rl_config.max_restarts={self.most_restarts} in a row is reached"
            self.notify(f"warning: rollout replica {number} is not restarted: {limit}")
            self.given_up.add(number)
            if lost is not None:
                lost.group.stop()
            return
        self._begin(number, lost)

    def require_some(self) -> None:
        """Raise if no replica is running or starting.

        Raises:
            ClusterError: All were lost too often.
        """
        if not self.up and not self.coming:
            raise ClusterError(
                f"all {self.count} rollout replica(s) were lost {self.most_restarts + 1} times in "
                f"a row (rl_config.max_restarts={self.most_restarts}); see the logs rollout_*.log"
            )

    def stop(self) -> None:
        """End all replicas, including those that are starting."""
        self.is_over.set()
        self.threads.shutdown(wait=True, cancel_futures=True)
        came = [each for each in self.coming.values() if not each.cancelled()]
        groups = [each.result() for each in came if each.exception() is None]
        for group in [*groups, *(each.group for each in self.up.values())]:
            group.stop()
        self.up.clear()
        self.coming.clear()

    def _begin(self, number: int, lost: ReplicaGroup | None) -> None:
        self.coming[number] = self.threads.submit(self._started, number, lost)

    def _started(self, number: int, lost: ReplicaGroup | None) -> Workers:
        if lost is not None:
            lost.group.stop()
        group = self.start(number, self._check_interrupt)
        group.meanwhile = lambda: None
        return group

    def _check_interrupt(self) -> None:
        if self.is_over.is_set():
            raise InterruptedRunError("the run has already ended")
