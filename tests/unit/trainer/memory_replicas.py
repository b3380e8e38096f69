"""Rollout replicas that answer from memory, with the speed and the failures of the test.

A token is 100 + the version of the weights that drew it; so many as the prompt's row says.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mindrl.batch.rollouts import Responses
from mindrl.batch.route_keys import content_key
from mindrl.errors import ClusterError, WorkerDiedError
from mindrl.rollout.engine import Request, Sampling

LengthOf = Callable[[int], int]


@dataclass
class MemoryReplica:
    """One engine; it is dead after `calls_left` calls."""

    number: int
    length_of: LengthOf
    pause_seconds: Callable[[], float] = lambda: 0.0
    calls_left: int = 10**9
    version: int | None = None
    requests: list[Request] = field(default_factory=list)
    drawn: list[list[int]] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)
    """All requests so far, without the probes of its weights."""
    probed: list[tuple[int, int]] = field(default_factory=list)
    """Number and version of each probe of a replica's weights, of all replicas."""
    probed_version: int | None = None
    most: int | None = None
    """Tokens of a response to a probe; None for other requests."""
    routes: dict[int, int | None] = field(default_factory=dict)
    """Keys of the requests that ended and were not fetched, each with that of the part before."""

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        assert sampling.samples_per_prompt == 2
        self._live()
        assert self.version is not None, "weights come before the first request"
        self.requests, self.drawn = [], []
        self.most = None
        if self.version != self.probed_version:
            self.probed.append((self.number, self.version))
            self.probed_version, self.most = self.version, sampling.section.max_tokens
        self._add(requests)

    def advance(
        self, steps: int, more: Sequence[Request], until: int | None = None
    ) -> tuple[list[int], Responses]:
        self._live()
        time.sleep(self.pause_seconds())
        self._add(more)
        left = sorted(filter(None, map(self._left, range(len(self.drawn)))))
        if until is not None and len(left) >= until:
            steps = min(steps, left[until - 1])
        found = []
        for place, drawn in enumerate(self.drawn):
            before = self._left(place)
            drawn.extend([100 + (self.version or 0)] * min(steps, before))
            if before and not self._left(place):
                found.append(place)
        self._end(found)
        return found, self._responses(found)

    def take(self) -> Responses:
        self._live()
        self._end(range(len(self.requests)))
        return self._responses(range(len(self.requests)))

    def take_routes(self) -> dict[int, int | None]:
        self._live()
        found, self.routes = self.routes, {}
        return found

    def _end(self, places: Sequence[int]) -> None:
        for place in places:
            request, drawn = self.requests[place], self.drawn[place]
            if drawn:
                before = content_key(request.token_ids[: request.sampled])
                key = content_key([*request.token_ids, *drawn])
                self.routes[key] = before if request.sampled else None

    def _live(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise WorkerDiedError(f"replica {self.number} died")

    def _add(self, requests: Sequence[Request]) -> None:
        self.requests += requests
        if self.most is None:
            self.asked += requests
        self.drawn += [[] for _ in requests]

    def _left(self, place: int) -> int:
        request = self.requests[place]
        length = self.most or self.length_of(request.token_ids[0] - 1)
        return length - request.drawn - len(self.drawn[place])

    def _responses(self, places: Sequence[int]) -> Responses:
        return Responses.of(
            token_ids=[self.drawn[place] for place in places],
            logprobs=[[-1.0] * len(self.drawn[place]) for place in places],
            finished=[self._left(place) == 0 for place in places],
        )


@dataclass
class MemoryEngines:
    """Several replicas; a lost one returns after some publications."""

    count: int
    length_of: LengthOf
    pause_seconds: Callable[[], float] = lambda: 0.0
    deaths: list[int] = field(default_factory=list)
    """Number of calls after which each started replica dies; later ones do not die."""
    lost_in_publish: set[int] = field(default_factory=set)
    """Numbers of publications in which the first replica is lost."""
    late: int = 1
    """Publications until a new replica has started."""
    most_replaced: int = 10**9
    versions: list[int] = field(default_factory=list)
    """Published versions."""
    asked: list[Request] = field(default_factory=list)
    probed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replaced, self.pending = 0, dict.fromkeys(range(self.count), 0)
        self.replicas: dict[int, MemoryReplica] = {}

    def living(self) -> list[MemoryReplica]:
        return [*self.replicas.values()]

    def publish(self, version: int) -> list[int]:
        self.versions.append(version)
        self.pending = {number: late - 1 for number, late in self.pending.items()}
        for number in [number for number, late in self.pending.items() if late <= 0]:
            del self.pending[number]
            lives = self.deaths.pop(0) if self.deaths else 10**9
            self.replicas[number] = MemoryReplica(
                number,
                self.length_of,
                self.pause_seconds,
                lives,
                asked=self.asked,
                probed=self.probed,
            )
        lost = []
        if len(self.versions) in self.lost_in_publish and self.replicas:
            lost.append(min(self.replicas))
            self.begin_replacing(lost[0], "lost")
        for replica in self.replicas.values():
            replica.version = version
        return lost

    def look(self) -> None:
        pass

    def check_training(self) -> None:
        pass

    def begin_replacing(self, number: int, why: str) -> None:
        assert why
        self.replaced += 1
        if self.replaced > self.most_replaced:
            raise ClusterError("too many replicas were lost")
        self.replicas.pop(number, None)
        self.pending[number] = self.late
