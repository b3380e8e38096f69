"""Requests that all engines complete in rounds, which may stop or add others in between.

Shapes: N tokens of a response.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from mindrl.batch.rollouts import Responses
from mindrl.layouts.layout import even_bounds
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engines import Engines


class Completed(NamedTuple):
    """The response to a completed request."""

    tokens_N: Tensor
    logprobs_N: Tensor
    finished: bool


class FollowUp(NamedTuple):
    """A request that is added after a round."""

    place: int | None
    """Index of the completed request that it continues; None if it continues none."""
    request: Request


NextTurns = Callable[[Mapping[int, Completed], int], Sequence[FollowUp]]
"""Called after each round with the completed requests, by index, and the number of open ones;
returns those that follow. Waits for some if no request is open."""


@dataclass(kw_only=True)
class EngineRounds:
    """The requests of one rollout, on all replicas."""

    engines: Engines
    rows: int
    """Number of sequences that an engine processes in one step; it has at most twice as many
    requests."""
    sampling: Sampling
    round_steps: int
    requests: list[Request]
    whole: set[int] = field(default_factory=set, init=False)
    """Indices of completed requests."""

    def __post_init__(self) -> None:
        """Assign the requests to the replicas."""
        dealt, most = self._shares(), 2 * self.rows
        self.waiting = deque(sorted(place for share in dealt for place in share[most:]))
        self.shares = [share[:most] for share in dealt]

    def run(
        self, is_enough: Callable[[Collection[int]], bool], next_turns: NextTurns | None
    ) -> Responses:
        """Generate until the completed requests are enough; return all responses, in order."""
        started = [([self.requests[at] for at in each], self.sampling) for each in self.shares]
        self.engines.each("begin_sequences", started)
        more: list[list[int]] = [[] for _ in self.shares]
        while True:
            new = self._advance(more, until=None if next_turns is None else 1)
            left = len(self.requests) - len(self.whole)
            after = [] if next_turns is None else next_turns(new, left)
            if is_enough(self.whole):
                return self._take_back()
            more = self._refill()
            for follow in after:
                replica = self._replica_for(follow.place)
                self.shares[replica].append(len(self.requests))
                more[replica].append(len(self.requests))
                self.requests.append(follow.request)

    def _advance(self, more: Sequence[Sequence[int]], until: int | None) -> dict[int, Completed]:
        """Run a round with further requests; return what it completes."""
        limit = () if until is None else (until,)
        given = [(self.round_steps, [self.requests[at] for at in each], *limit) for each in more]
        new: dict[int, Completed] = {}
        found = self.engines.each("advance_sequences", given)
        for share, (places, responses) in zip(self.shares, found, strict=True):
            ended = responses.finished_B.tolist()
            for place, drawn, is_finished in zip(places, responses.each(), ended, strict=True):
                new[share[place]] = Completed(drawn[0], drawn[1], is_finished)
        self.whole |= new.keys()
        return new

    def _take_back(self) -> Responses:
        replies: list[Responses] = self.engines.each("take_sequences", [()] * len(self.shares))
        places = [place for share in [*self.shares, self.waiting] for place in share]
        none = [()] * len(self.waiting)
        left = Responses.of(none, none, [False] * len(self.waiting))
        return Responses.joined([*replies, left]).in_order(places)

    def _refill(self) -> list[list[int]]:
        """Assign waiting requests to the least loaded replicas; return those of each."""
        more: list[list[int]] = [[] for _ in self.shares]
        counts = self._counts()
        while self.waiting and min(counts) < 2 * self.rows:
            replica, place = counts.index(min(counts)), self.waiting.popleft()
            more[replica].append(place)
            self.shares[replica].append(place)
            counts[replica] += 1
        return more

    def _counts(self) -> list[int]:
        """Return the number of open requests of each replica."""
        return [sum(place not in self.whole for place in share) for share in self.shares]

    def _replica_for(self, place: int | None) -> int:
        """Return the replica that has the prefix in its cache, or the least loaded."""
        if place is None:
            return min(range(len(self.shares)), key=self._counts().__getitem__)
        return next(at for at, share in enumerate(self.shares) if place in share)

    def _shares(self) -> list[list[int]]:
        """Assign started requests round-robin, since they tend to be long; new ones in order."""
        count, requests = self.engines.replicas, self.requests
        started = [place for place, request in enumerate(requests) if request.drawn]
        new = [place for place, request in enumerate(requests) if not request.drawn]
        return [
            started[replica::count] + new[start:end]
            for replica, (start, end) in enumerate(even_bounds(len(new), count))
        ]
