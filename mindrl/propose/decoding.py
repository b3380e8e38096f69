"""Rollout replicas in simulated time: each draws a token of every sequence that it has, in steps.

Pure. Sequences begin where fewest are; one that is taken back is read anew where it goes on.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


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


@dataclass(kw_only=True, eq=False)
class Drawing:
    """A response under way."""

    group: int
    left: int
    """Tokens that it lacks."""
    context: int
    """Tokens of its prompt and of itself, so far."""


@dataclass(eq=False)
class _Decoder:
    """One replica."""

    rates: Rates
    now: float = 0.0
    busy: float = 0.0
    steps: int = 0
    context: int = 0
    ends: list[tuple[int, int, Drawing]] = field(default_factory=list)
    """A heap: the step behind which each is whole."""
    begun: int = 0

    def add(self, drawing: Drawing, at: float) -> None:
        if not self.ends:
            self.now = max(self.now, at)
        self._spend(drawing.context * self.rates.prompt_token)
        self.begun += 1
        heapq.heappush(self.ends, (self.steps + drawing.left, self.begun, drawing))
        self.context += drawing.context

    def next_end(self) -> float:
        return self.now + self._seconds(self.ends[0][0] - self.steps) if self.ends else math.inf

    def finish(self) -> Drawing:
        """Go on until the first is whole."""
        self._advance(self.ends[0][0] - self.steps)
        _, _, drawing = heapq.heappop(self.ends)
        self.context -= drawing.context + drawing.left
        return drawing

    def take_back(self, at: float) -> list[Drawing]:
        """Take the whole steps up to a time, and give all back."""
        low, high = 0, self.ends[0][0] - self.steps if self.ends else 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self.now + self._seconds(middle) <= at else (low, middle - 1)
            )
        self._advance(low)
        left = []
        for end, _, drawing in self.ends:
            lacking = end - self.steps
            context = drawing.context + drawing.left - lacking
            left.append(Drawing(group=drawing.group, left=lacking, context=context))
        self.ends, self.context = [], 0
        return left

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


class Fleet:
    """All replicas, and what waits for room on one of them."""

    def __init__(self, rates: Rates, replicas: int) -> None:
        """Begin with nothing to do."""
        self.rates = rates
        self.decoders = [_Decoder(rates) for _ in range(replicas)]
        self.waiting: deque[Drawing] = deque()

    @property
    def busy_seconds(self) -> float:
        """What all replicas have worked, in seconds of a device."""
        return sum(each.busy for each in self.decoders) * self.rates.replica_devices

    def add(self, drawings: Iterable[Drawing], at: float) -> None:
        """Take responses that are to be drawn."""
        self.waiting.extend(drawings)
        self._fill(at)

    def next_end(self) -> float:
        """Return when the next response is whole."""
        return min(each.next_end() for each in self.decoders)

    def finish_next(self) -> Drawing:
        """Go on until then; returns the response."""
        decoder = min(self.decoders, key=_Decoder.next_end)
        drawing = decoder.finish()
        self._fill(decoder.now)
        return drawing

    def take_back(self, at: float) -> list[Drawing]:
        """Stop all at a time, up to which none becomes whole; returns what is not whole."""
        left = [drawing for each in self.decoders for drawing in each.take_back(at)]
        left += self.waiting
        self.waiting.clear()
        return left

    def _fill(self, at: float) -> None:
        while self.waiting:
            decoder = min(self.decoders, key=lambda each: len(each.ends))
            if len(decoder.ends) >= self.rates.at_a_time:
                return
            decoder.add(self.waiting.popleft(), at)
