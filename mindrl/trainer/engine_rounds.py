"""Requests that all engines complete in rounds; they may stop or get others between rounds.

Shapes: N tokens of a response.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from mindrl.batch.rollouts import Responses
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engines import ColocatedEngines
from mindrl.workers.calls import Pending

_HEAR_SECONDS, _IDLE_HEAR_SECONDS = 0.02, 0.005
"""Intervals between looks at the answers of environments: while all engines work, and while some
have no turns."""


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


class RoundEnds(NamedTuple):
    """When engines report what they have generated."""

    steps: int
    """After this many steps of an engine, at the latest."""
    together: bool = True
    """Whether an engine begins a round only after the last rounds of all have ended."""


NextTurns = Callable[[Mapping[int, Completed], int], Sequence[FollowUp]]
"""Called with the requests completed since the last call, by index, and the number of open ones;
returns the requests that follow. Waits for some if no request is open."""
OnCompleted = Callable[[Mapping[int, Completed]], None]
"""Called after a round with the requests that it completed, by index."""
IsEnough = Callable[[Collection[int]], bool]
"""Called with the indices of all completed requests; returns whether they are enough."""


@dataclass(kw_only=True)
class EngineRounds:
    """The requests of one rollout, on all replicas."""

    engines: ColocatedEngines
    rows: int
    """Number of sequences that an engine processes in one step; it has at most twice as many
    requests."""
    sampling: Sampling
    rounds: RoundEnds
    requests: list[Request]
    assigned: Sequence[Sequence[int]]
    """Indices of the requests of each replica, in the order in which they begin."""
    whole: set[int] = field(default_factory=set, init=False)
    """Indices of completed requests."""
    first: list[int] = field(init=False)
    """Index of the request that each one follows, directly or not; its own if it follows none."""
    replica_of: dict[int, int] = field(default_factory=dict, init=False)
    """Replica of each request that was assigned to one."""
    open: list[int] = field(init=False)
    """Number of open requests of each replica."""

    def __post_init__(self) -> None:
        """Assign the requests to the replicas."""
        whole, most = self.assigned, 2 * self.rows
        self.first = [*range(len(self.requests))]
        self.waiting = deque(sorted(place for share in whole for place in share[most:]))
        self.shares: list[list[int]] = [[] for _ in whole]
        self.open = [0 for _ in whole]
        for replica, share in enumerate(whole):
            for place in share[:most]:
                self._give(replica, place)

    def run(
        self,
        is_enough: IsEnough,
        next_turns: NextTurns | None = None,
        on_completed: OnCompleted | None = None,
    ) -> Responses:
        """Generate in rounds until the completed requests are enough; return all, in order.

        With `next_turns` a round ends with its first completed request. Unless all work together, a
        replica begins its next round as soon as its last one has ended, with the turns that can
        begin by then.
        """
        started = [([self.requests[at] for at in each], self.sampling) for each in self.shares]
        self.engines.each("begin_sequences", started)
        more: list[list[int]] = [[] for _ in self.shares]
        running: dict[int, Pending] = {}
        limit = () if next_turns is None else (1,)
        while True:
            for replica, count in enumerate(self.open):
                if count and replica not in running:
                    running[replica] = self._begin(replica, more[replica], limit)
                    more[replica] = []
            has_ended, new = self._hear(running)
            if on_completed is not None:
                on_completed(new)
            left = len(self.requests) - len(self.whole)
            after = [] if next_turns is None else next_turns(new, left)
            # Decide only after new answers of engines, or if all are idle.
            if (has_ended or not running) and is_enough(self.whole):
                for each in running.values():
                    each.wait()
                self._unassign(more)
                return self._take_back()
            for places, added in zip(more, self._refill(), strict=True):
                places.extend(added)
            self._assign(after, more)

    def _give(self, replica: int, place: int) -> None:
        """Assign a request to a replica."""
        self.shares[replica].append(place)
        self.replica_of[place] = replica
        self.open[replica] += 1

    def _begin(self, replica: int, more: Sequence[int], limit: tuple[int, ...]) -> Pending:
        """Start a round of a replica, with further requests."""
        given = (self.rounds.steps, [self.requests[at] for at in more], *limit)
        return self.engines.begin("advance_sequences", replica, given)

    def _hear(self, running: dict[int, Pending]) -> tuple[bool, dict[int, Completed]]:
        """Wait for all rounds, or briefly for the end of one.

        Returns whether any has ended, and the requests completed in it.
        """
        ended = [*running]
        if ended and not self.rounds.together:
            seconds = _IDLE_HEAR_SECONDS if len(running) < len(self.shares) else _HEAR_SECONDS
            ended = [ended[at] for at in self.engines.answered([*running.values()], seconds)]
        new: dict[int, Completed] = {}
        for replica in ended:
            new |= self._completed(replica, *running.pop(replica).wait()[0])
        return bool(ended), new

    def _unassign(self, more: Sequence[Sequence[int]]) -> None:
        """Take requests back that were not sent: the last ones of each replica."""
        for share, places in zip(self.shares, more, strict=True):
            del share[len(share) - len(places) :]
            self.waiting += places

    def _assign(self, after: Sequence[FollowUp], more: Sequence[list[int]]) -> None:
        """Add requests to the replicas that they belong to, and to those to be sent."""
        for follow in after:
            replica = self._replica_for(follow.place)
            self._give(replica, len(self.requests))
            more[replica].append(len(self.requests))
            self.first.append(
                self.first[follow.place] if follow.place is not None else len(self.first)
            )
            self.requests.append(follow.request)

    def _completed(
        self, replica: int, places: Sequence[int], responses: Responses
    ) -> dict[int, Completed]:
        """Return what a replica has completed, by the indices of the requests."""
        share, ended = self.shares[replica], responses.finished_B.tolist()
        new = {
            share[place]: Completed(*drawn, is_finished)
            for place, drawn, is_finished in zip(places, responses.each(), ended, strict=True)
        }
        self.open[replica] -= sum(place not in self.whole for place in new)
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
        while self.waiting and (least := min(self.open)) < 2 * self.rows:
            replica, place = self.open.index(least), self.waiting.popleft()
            more[replica].append(place)
            self._give(replica, place)
        return more

    def _replica_for(self, place: int | None) -> int:
        """Return the replica that has the prefix in its cache, or the least loaded."""
        return self.open.index(min(self.open)) if place is None else self.replica_of[place]
