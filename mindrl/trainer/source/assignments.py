"""Requests in flight: which replica generates which open response of a pool.

Pure: no engine, no thread and no clock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mindrl.batch.rollouts import Responses
from mindrl.trainer.source.pool import GroupPool, ResponseNumber


@dataclass
class _InFlight:
    """Requests sent to a replica since it started."""

    rows: list[ResponseNumber] = field(default_factory=list)
    """Responses, in the order of sending."""
    since: list[int] = field(default_factory=list)
    """Number of steps that the replica had run when each request was sent."""
    known: set[ResponseNumber] = field(default_factory=set)
    """The same responses, each once."""
    returned: set[int] = field(default_factory=set)
    """Indices of requests that returned."""
    steps: int = 0
    tokens: int = 0
    """Tokens of the requests that have not returned, with their prompts."""

    def unreturned(self) -> list[ResponseNumber]:
        """Return the responses with open requests."""
        return [row for index, row in enumerate(self.rows) if index not in self.returned]


@dataclass
class Assignments:
    """Distributes the open responses of a pool over replicas.

    The work of a call grows with the responses that have changed, not with all open ones.
    """

    pool: GroupPool
    in_flight: dict[int, _InFlight] = field(default_factory=dict)
    """Requests of each started replica, by its number."""
    assigned: set[ResponseNumber] = field(default_factory=set)
    """Responses with a request that has not returned."""
    released: set[ResponseNumber] = field(default_factory=set)
    """Responses whose replica stopped or was lost since the last assignment."""

    def assign(self, replicas: Collection[int]) -> dict[int, list[ResponseNumber]]:
        """Assign unassigned responses, oldest first, each group to the least loaded replica.

        The load is the number of tokens in flight. Responses to a prompt stay together unless some
        were assigned before. A further turn goes to the replica that has its prefix.
        """
        if not replicas:
            return {}
        loads = {number: self._load(number) for number in sorted(replicas)}
        groups: dict[int, list[ResponseNumber]] = {}
        more: dict[int, list[ResponseNumber]] = {}
        for row in self._unassigned():
            if (known := self._replica_of(row)) in loads:
                more.setdefault(known, []).append(row)
            else:
                groups.setdefault(row.group, []).append(row)
        for rows in groups.values():
            chosen = min(loads, key=loads.__getitem__)
            loads[chosen] += sum(map(self._tokens, rows))
            more.setdefault(chosen, []).extend(rows)
        for chosen, rows in more.items():
            each = self.in_flight.setdefault(chosen, _InFlight())
            each.rows += rows
            each.since += [each.steps] * len(rows)
            each.known.update(rows)
            each.tokens += sum(map(self._tokens, rows))
            self.assigned.update(rows)
        return more

    def received(
        self, replica: int, indices: Sequence[int], responses: Responses, *, step: int
    ) -> None:
        """Add the responses at these indices of a replica's requests.

        `step` is that of the replica's weights. Responses that arrived before are ignored.
        """
        each, finished = self.in_flight[replica], responses.finished_B.tolist()
        for index, sampled, ended in zip(indices, responses.each(), finished, strict=True):
            row = each.rows[index]
            if index not in each.returned and row.group in self.pool.groups:
                each.returned.add(index)
                each.tokens -= self._tokens(row)
                self.assigned.discard(row)
                self.pool.extend(row, sampled, step=step, finished=ended)

    def advanced(self, replica: int, steps: int) -> None:
        """Record that a replica has run steps."""
        self.in_flight[replica].steps += steps

    def ended(self, replica: int) -> None:
        """Record that a replica has stopped: its open responses can be assigned to others."""
        self._release(self.in_flight.pop(replica, _InFlight()))

    def lost(self, replica: int) -> int:
        """Unassign the requests of a lost replica, discarding what it did not return.

        Returns the maximum number of discarded tokens.
        """
        each = self.in_flight.pop(replica, _InFlight())
        self._release(each)
        return sum(
            min(each.steps - since, self.pool.longest - self._sampled(row))
            for index, (row, since) in enumerate(zip(each.rows, each.since, strict=True))
            if index not in each.returned and row.group in self.pool.groups
        )

    def _release(self, stopped: _InFlight) -> None:
        rows = stopped.unreturned()
        self.assigned.difference_update(rows)
        self.released.update(rows)

    def _unassigned(self) -> list[ResponseNumber]:
        """Return the responses that need a request, the oldest first.

        Others need one only after a change, which the pool reports, or after their release.
        """
        rows = sorted(self.pool.take_changed() | self.released)
        self.released.clear()
        return [row for row in rows if row not in self.assigned and self.pool.needs_tokens(row)]

    def _load(self, replica: int) -> int:
        return self.in_flight[replica].tokens if replica in self.in_flight else 0

    def _replica_of(self, row: ResponseNumber) -> int:
        """Return the replica that had a request of a response before; -1 if none had."""
        return next((each for each, its in self.in_flight.items() if row in its.known), -1)

    def _sampled(self, row: ResponseNumber) -> int:
        return len(self.pool.groups[row.group].sequences[row.response].tokens_N)

    def _tokens(self, row: ResponseNumber) -> int:
        return len(self.pool.prompt(row.group).token_ids) + self._sampled(row)
