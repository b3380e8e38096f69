"""A rollout replica in simulated time: it draws a token of every sequence that it has, in steps.

Pure. It is looked at behind rounds of so many steps, as a run looks at it. A sequence that is taken
back is read anew where it goes on.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device, or a replica, takes for each thing, in seconds."""

    engine_step: float
    """Of a replica: a step of its engine, however few sequences it has."""
    sequence_step: float = 0.0
    """Of a step, by the sequence, where that is more."""
    sequence_more: float = 0.0
    """More of a step for each sequence, where that comes on top."""
    context_token: float = 0.0
    """More of a step, for each token in the KV cache that it reads."""
    prompt_token: float = 0.0
    """Of a replica: a token that it reads before it draws."""
    trained_token: float = 0.0
    """Of a device: a token of a response that it trains on."""
    update: float = 0.0
    """Of the devices that train together: a step's training, however few tokens it has."""
    switch: float = 0.0
    """From training to rollout and back, on shared devices."""
    publish: float = 0.0
    """The way of new weights to replicas on devices of their own."""
    at_a_time: int = 256
    """Sequences that a replica draws at most."""
    replica_devices: int = 1

    def step(self, sequences: int) -> float:
        """Return what a step takes, but for what it reads of the KV cache."""
        least = max(self.engine_step, sequences * self.sequence_step)
        return least + sequences * self.sequence_more


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A response under way."""

    group: int
    left: int
    """Tokens that it lacks, at least one."""
    context: int
    """Tokens of its prompt and of itself, so far."""
    is_begun: bool = False
    """It has tokens of its own."""


@dataclass(eq=False)
class SimulatedReplica:
    """One replica, between two rounds."""

    rates: Rates
    round_steps: int
    """Steps of a round."""
    now: float = 0.0
    busy: float = 0.0
    steps: int = 0
    context: int = 0
    ends: list[tuple[int, int, Drawing]] = field(default_factory=list)
    """A heap: the step behind which each is whole."""
    waiting: deque[Drawing] = field(default_factory=deque)
    """For room among those."""
    begun: int = 0

    @property
    def count(self) -> int:
        """How many sequences it has, whole ones not counted."""
        return len(self.ends) + len(self.waiting)

    def add(self, drawings: Iterable[Drawing], at: float) -> None:
        """Take sequences, behind those that it has; it has none, or is between two rounds."""
        if not self.ends:
            self.now = max(self.now, at)
        self.waiting.extend(drawings)
        self._fill()

    def rounds_left(self) -> int:
        """Return behind how many rounds the next response is whole."""
        return -(-(self.ends[0][0] - self.steps) // self.round_steps)

    def behind(self, rounds: int) -> tuple["SimulatedReplica", list[Drawing]]:
        """Return what it is so many rounds later, and what has become whole by then.

        A round ends early where nothing is left.
        """
        found = copy(self)
        found.ends, found.waiting = [*self.ends], deque(self.waiting)
        return found, found._drawn(self.steps + rounds * self.round_steps)

    def rounds_until(self, at: float) -> int:
        """Return how many rounds have begun before a time, but none behind the next whole one."""
        low, high = 0, self.rounds_left() if self.ends else 0
        while low < high:
            middle = (low + high) // 2
            is_late = self.now + self._seconds(middle * self.round_steps) >= at
            low, high = (low, middle) if is_late else (middle + 1, high)
        return low

    def give_back(self) -> list[Drawing]:
        """Return what is not whole, as far as it has come, and drop it."""
        open_ = []
        for end, _, drawing in self.ends:
            more = drawing.left - (end - self.steps)
            context, is_begun = drawing.context + more, drawing.is_begun or more > 0
            open_.append(
                replace(drawing, left=end - self.steps, context=context, is_begun=is_begun)
            )
        open_ += self.waiting
        self.ends, self.waiting, self.context = [], deque(), 0
        return open_

    def _drawn(self, last: int) -> list[Drawing]:
        whole = []
        while self.ends and self.steps < last:
            self._advance(min(last, self.ends[0][0]) - self.steps)
            while self.ends and self.ends[0][0] == self.steps:
                drawing = heapq.heappop(self.ends)[2]
                self.context -= drawing.context + drawing.left
                whole.append(drawing)
            self._fill()
        return whole

    def _fill(self) -> None:
        while self.waiting and len(self.ends) < self.rates.at_a_time:
            drawing = self.waiting.popleft()
            self._spend(drawing.context * self.rates.prompt_token)
            self.begun += 1
            heapq.heappush(self.ends, (self.steps + drawing.left, self.begun, drawing))
            self.context += drawing.context

    def _seconds(self, steps: int) -> float:
        count = len(self.ends)
        read = steps * self.context + count * steps * (steps - 1) / 2
        return steps * self.rates.step(count) + self.rates.context_token * read

    def _advance(self, steps: int) -> None:
        self._spend(self._seconds(steps))
        self.steps += steps
        self.context += steps * len(self.ends)

    def _spend(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds
