"""Turns of a pool's conversations, each requested as soon as its environment has answered."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from mindrl.batch.rollouts import Responses
from mindrl.rollout.engine import Request
from mindrl.trainer.engine_rounds import Completed, FollowUp
from mindrl.trainer.source.pool import GroupPool, ResponseNumber

_HEAR_SECONDS = 0.2
"""Interval between checks of whether the run was asked to stop."""


@dataclass(kw_only=True)
class Conversing:
    """The requests of a rollout, and the responses that they belong to."""

    pool: GroupPool
    step: int
    check_interrupt: Callable[[], None]
    lock_step: bool
    """Whether a turn begins only when all earlier turns and answers are complete."""
    rows: list[ResponseNumber] = field(default_factory=list, init=False)
    """The response of each request."""
    newest: dict[ResponseNumber, int] = field(default_factory=dict, init=False)
    """Index of the last request of each response."""
    engaged: set[ResponseNumber] = field(default_factory=set, init=False)
    """Responses with an open request."""
    ready: list[ResponseNumber] = field(init=False)
    """Responses that need tokens and had no request at the last look, the oldest first."""

    def __post_init__(self) -> None:
        """Look at all responses once; later only at those that have changed."""
        self.pool.take_changed()
        self.ready = self.pool.incomplete()

    def first(self) -> list[Request]:
        """Wait for environments to begin; return the requests of those that have begun."""
        self._hear(waits=True)
        return [each.request for each in self._requests()]

    def next_turns(self, new: Mapping[int, Completed], left: int) -> list[FollowUp]:
        """Let environments answer completed turns; return the turns that can begin."""
        self.check_interrupt()
        for place, (tokens_N, logprobs_N, finished) in new.items():
            self._extend(place, (tokens_N, logprobs_N), finished=finished)
        if self.lock_step and left:
            return []
        self._hear(waits=not left)
        return self._requests()

    def is_over(self) -> bool:
        """Return whether no turn is open or can begin."""
        turns = self.pool.turns
        assert turns is not None, "conversations have environments"
        return not (self.engaged or turns.waiting or self._ready())

    def end(self, responses: Responses) -> None:
        """Keep the tokens of unfinished turns, and wait for all environments."""
        drawn = zip(responses.each(), responses.finished_B.tolist(), strict=True)
        for place, (sampled, finished) in enumerate(drawn):
            row = self.rows[place]
            if row in self.engaged and self.newest[row] == place:
                self._extend(place, sampled, finished=finished)
        while self.pool.hear(_HEAR_SECONDS):
            self.check_interrupt()

    def _extend(self, place: int, sampled: tuple[Tensor, Tensor], *, finished: bool) -> None:
        row = self.rows[place]
        self.engaged.discard(row)
        self.pool.extend(row, sampled, step=self.step, finished=finished)

    def _hear(self, *, waits: bool) -> None:
        """Take available answers; if `waits`, wait for one, or for all in lock step."""
        began, turns = time.perf_counter(), self.pool.turns
        while self.pool.hear(_HEAR_SECONDS if waits else 0.0) and waits:
            self.check_interrupt()
            if not self.lock_step and self._ready():
                break
        if waits and turns is not None:
            turns.idle_seconds += time.perf_counter() - began

    def _ready(self) -> list[ResponseNumber]:
        known = sorted({*self.ready, *self.pool.take_changed()})
        self.ready = [
            row for row in known if row not in self.engaged and self.pool.needs_tokens(row)
        ]
        return self.ready

    def _requests(self) -> list[FollowUp]:
        found = []
        for row in self._ready():
            found.append(FollowUp(self.newest.get(row), self.pool.request(row)))
            self.newest[row] = len(self.rows)
            self.engaged.add(row)
            self.rows.append(row)
        return found
