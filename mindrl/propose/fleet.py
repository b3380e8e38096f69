"""Simulate all rollout replicas: distribution, polling and interruption as in a run.

Pure. In turns (`bounds`) every replica gets the same number of sequences and completes them in one
call. If replicas generate ahead (`groups`), the responses to a prompt stay together on the replica
with the fewest tokens, and each replica has its own rounds. In a partial rollout (`rounds`)
continued sequences are distributed round-robin, new ones by bounds, and all replicas share each
round.
"""

import math
import sys
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from mindrl.layouts.layout import even_bounds
from mindrl.propose.decoding import Drawing, Rates, SimulatedReplica

Dealing = Literal["bounds", "groups", "rounds"]


class Seen(NamedTuple):
    """Result of polling or stopping replicas."""

    at: float
    whole: list[Drawing]
    left: list[Drawing]
    """Incomplete responses of stopped replicas; empty if they were not stopped."""


class Fleet:
    """The replicas of a run, and the sequences that wait for them."""

    def __init__(self, rates: Rates, count: int, dealing: Dealing, round_steps: int) -> None:
        """Start without sequences."""
        self.dealing, self.most = dealing, 2 * rates.at_a_time
        self.replica_devices = rates.replica_devices
        steps = sys.maxsize if dealing == "bounds" else round_steps
        self.replicas = [SimulatedReplica(rates, steps) for _ in range(count)]
        self.ahead: dict[int, tuple[SimulatedReplica, list[Drawing]]] = {}
        """Replicas after the round that completes their next response, computed on demand."""
        self.waiting: deque[Drawing] = deque()
        """In a partial rollout, sequences that are on no replica."""

    @property
    def busy_seconds(self) -> float:
        """Working time of all replicas, in device seconds."""
        return sum(each.busy for each in self.replicas) * self.replica_devices

    def add(self, drawings: Sequence[Drawing], at: float) -> None:
        """Distribute new and continued responses, the oldest first, over idle replicas."""
        for replica, share in zip(self.replicas, self._shares(drawings), strict=True):
            replica.add(share, at)
        self.ahead.clear()

    def next_look(self) -> float:
        """Return the time at which the next response is seen to be complete."""
        return min(
            self._ahead(place)[0].now if each.ends else math.inf
            for place, each in enumerate(self.replicas)
        )

    def go_on(self) -> Seen:
        """Advance to that time."""
        if self.dealing == "rounds":
            return self._go_on_together()
        busy = [place for place, each in enumerate(self.replicas) if each.ends]
        place = min(busy, key=lambda place: self._ahead(place)[0].now)
        self.replicas[place], whole = self._ahead(place)
        del self.ahead[place]
        return Seen(self.replicas[place].now, whole, [])

    def stop(self, at: float) -> Seen:
        """Stop each replica after the round that it is in at `at`; remove incomplete responses."""
        whole, left = [], [*self.waiting]
        for place, each in enumerate(self.replicas):
            self.replicas[place], found = each.after(each.rounds_until(at))
            whole += found
            left += self.replicas[place].give_back()
        self.waiting.clear()
        self.ahead.clear()
        ends = max(each.now for each in self.replicas)
        return Seen(max(at, ends), whole, sorted(left, key=lambda drawing: drawing.group))

    def _ahead(self, place: int) -> tuple[SimulatedReplica, list[Drawing]]:
        if place not in self.ahead:
            replica = self.replicas[place]
            self.ahead[place] = replica.after(replica.rounds_left())
        return self.ahead[place]

    def _go_on_together(self) -> Seen:
        """Run rounds that all replicas start together, until a response is complete.

        The replica that is slowest over all these rounds determines their time.
        """
        rounds = min(each.rounds_left() for each in self.replicas if each.ends)
        found = [each.after(rounds) for each in self.replicas]
        self.replicas = [replica for replica, _ in found]
        now = max(each.now for each in self.replicas)
        for each in self.replicas:
            each.now = now
        while self.waiting:
            least = min(self.replicas, key=lambda each: each.count)
            if least.count >= self.most:
                break
            least.add([self.waiting.popleft()], now)
        return Seen(now, [drawing for _, whole in found for drawing in whole], [])

    def _shares(self, drawings: Sequence[Drawing]) -> list[list[Drawing]]:
        """Distribute responses in order; returns the share of each replica."""
        count = len(self.replicas)
        if self.dealing == "groups":
            return _with_least_tokens(drawings, count)
        started = [each for each in drawings if each.is_started and self.dealing == "rounds"]
        new = [each for each in drawings if not each.is_started or self.dealing == "bounds"]
        shares = [
            started[replica::count] + new[start:end]
            for replica, (start, end) in enumerate(even_bounds(len(new), count))
        ]
        if self.dealing == "bounds":
            return shares
        over = [drawing for share in shares for drawing in share[self.most :]]
        self.waiting.extend(sorted(over, key=lambda drawing: drawing.group))
        return [share[: self.most] for share in shares]


def _with_least_tokens(drawings: Sequence[Drawing], replicas: int) -> list[list[Drawing]]:
    """Give each group to the replica with the fewest tokens of prompts and responses."""
    shares: list[list[Drawing]] = [[] for _ in range(replicas)]
    loads = [0] * replicas
    for _, group in groupby(drawings, key=lambda drawing: drawing.group):
        rows = [*group]
        least = loads.index(min(loads))
        shares[least] += rows
        loads[least] += sum(drawing.context for drawing in rows)
    return shares
