"""Simulate a rollout replica, which generates one token per engine step for each sequence.

Pure. Finished sequences are collected after rounds of several steps, as in a run. A sequence that
was interrupted is prefilled again when it continues.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Time of each operation of a device or a replica, in seconds."""

    engine_step: float
    """Minimum time of a replica's engine step."""
    sequence_step: float = 0.0
    """Time of a step per sequence, if this exceeds the minimum."""
    sequence_more: float = 0.0
    """Additional time of a step per sequence."""
    context_token: float = 0.0
    """Additional time of a step per token that it reads from the KV cache."""
    prompt_token: float = 0.0
    """Prefill time of a replica per token."""
    trained_token: float = 0.0
    """Training time of a device per response token."""
    update: float = 0.0
    """Minimum training time of a step, on all training devices."""
    switch: float = 0.0
    """Switch from training to rollout and back, on shared devices."""
    publish: float = 0.0
    """Transfer of new weights to replicas on separate devices."""
    at_a_time: int = 256
    """Maximum number of sequences that a replica decodes together."""
    replica_devices: int = 1

    def step(self, sequences: int) -> float:
        """Return the time of a step, without reads of the KV cache."""
        least = max(self.engine_step, sequences * self.sequence_step)
        return least + sequences * self.sequence_more


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A response in progress."""

    group: int
    left: int
    """Tokens still missing, at least one."""
    context: int
    """Tokens of its prompt and of the response so far."""
    is_started: bool = False
    """Whether it has tokens of the response."""


@dataclass(eq=False)
class SimulatedReplica:
    """State of one replica between two rounds."""

    rates: Rates
    round_steps: int
    """Steps per round."""
    now: float = 0.0
    busy: float = 0.0
    steps: int = 0
    context: int = 0
    ends: list[tuple[int, int, Drawing]] = field(default_factory=list)
    """Heap: the step after which each sequence is complete."""
    waiting: deque[Drawing] = field(default_factory=deque)
    """Sequences that wait for a free place."""
    started: int = 0

    @property
    def count(self) -> int:
        """Number of incomplete sequences."""
        return len(self.ends) + len(self.waiting)

    def add(self, drawings: Iterable[Drawing], at: float) -> None:
        """Queue sequences after existing ones; the replica must be idle or between two rounds."""
        if not self.ends:
            self.now = max(self.now, at)
        self.waiting.extend(drawings)
        self._fill()

    def rounds_left(self) -> int:
        """Return the number of rounds until the next response is complete."""
        return -(-(self.ends[0][0] - self.steps) // self.round_steps)

    def after(self, rounds: int) -> tuple["SimulatedReplica", list[Drawing]]:
        """Return the replica's state after `rounds` rounds, and the responses completed by then.

        A round ends early if no sequence is left.
        """
        found = copy(self)
        found.ends, found.waiting = [*self.ends], deque(self.waiting)
        return found, found._drawn(self.steps + rounds * self.round_steps)

    def rounds_until(self, at: float) -> int:
        """Return the number of rounds started before `at`, up to the next completed response."""
        low, high = 0, self.rounds_left() if self.ends else 0
        while low < high:
            middle = (low + high) // 2
            is_late = self.now + self._seconds(middle * self.round_steps) >= at
            low, high = (low, middle) if is_late else (middle + 1, high)
        return low

    def give_back(self) -> list[Drawing]:
        """Remove and return the incomplete sequences with their progress."""
        open_ = []
        for end, _, drawing in self.ends:
            more = drawing.left - (end - self.steps)
            context, is_started = drawing.context + more, drawing.is_started or more > 0
            open_.append(
                replace(drawing, left=end - self.steps, context=context, is_started=is_started)
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
            self.started += 1
            heapq.heappush(self.ends, (self.steps + drawing.left, self.started, drawing))
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
