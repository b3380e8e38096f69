"""Assignment of responses to replicas: assigned, returned and lost requests.

Pure: no engine, no thread and no clock. Shapes: N tokens of a response.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mindrl.batch.rollouts import Responses
from mindrl.trainer.group_pool import OpenGroup


class DealtRow(NamedTuple):
    """A response: the number of its group in the run, and its index in the group."""

    group: int
    place: int


@dataclass
class _Hand:
    """Requests sent to a replica since it started."""

    rows: list[DealtRow] = field(default_factory=list)
    """In the order of sending."""
    since: list[int] = field(default_factory=list)
    """Number of steps that the replica had run when each was sent."""
    back: set[int] = field(default_factory=set)
    """Indices of those that returned."""
    steps: int = 0


class DealtGroups:
    """The open groups, oldest first, and the replicas that generate their responses."""

    def __init__(
        self, groups: Iterable[OpenGroup], longest: int, prompt_tokens: Callable[[OpenGroup], int]
    ) -> None:
        """Set groups without assignments; `longest` is the maximum of tokens in a response."""
        self.longest, self.prompt_tokens = longest, prompt_tokens
        self.groups: dict[int, OpenGroup] = {}
        self.begun = 0
        self.hands: dict[int, _Hand] = {}
        """By the numbers of the replicas that have started."""
        self.add(groups)

    def add(self, groups: Iterable[OpenGroup]) -> None:
        """Append groups."""
        for group in groups:
            self.groups[self.begun] = group
            self.begun += 1

    def pop(self, places: Sequence[int]) -> list[OpenGroup]:
        """Remove and return the groups at these indices."""
        numbers = [*self.groups]
        return [self.groups.pop(numbers[place]) for place in places]

    @property
    def under_way(self) -> tuple[OpenGroup, ...]:
        """All groups, the oldest first."""
        return tuple(self.groups.values())

    def whole(self) -> list[bool]:
        """Return for each group whether it can be trained on."""
        return [group.is_whole(self.longest) for group in self.groups.values()]

    def deal(self, replicas: Collection[int]) -> dict[int, list[DealtRow]]:
        """Assign unassigned responses, oldest first, each group to the least loaded replica.

        The load is the number of tokens in flight. Responses to a prompt stay together unless some
        were assigned before.
        """
        dealt = {row for hand in self.hands.values() for row in hand.rows}
        more: dict[int, list[DealtRow]] = {}
        loads = {number: self._load(number) for number in sorted(replicas)}
        for number, group in self.groups.items():
            rows = [DealtRow(number, place) for place in group.open_places(self.longest)]
            rows = [row for row in rows if row not in dealt]
            if not rows or not loads:
                continue
            chosen = min(loads, key=loads.__getitem__)
            loads[chosen] += sum(map(self._tokens, rows))
            more.setdefault(chosen, []).extend(rows)
        for chosen, rows in more.items():
            hand = self.hands.setdefault(chosen, _Hand())
            hand.rows += rows
            hand.since += [hand.steps] * len(rows)
        return more

    def drawn(
        self, replica: int, places: Sequence[int], responses: Responses, *, step: int
    ) -> None:
        """Add the responses at these indices of a replica's requests.

        `step` is the one whose weights the replica has. Responses that arrived before are ignored.
        """
        hand, finished = self.hands[replica], responses.finished_B.tolist()
        for place, more, ended in zip(places, responses.each(), finished, strict=True):
            row = hand.rows[place]
            if place in hand.back or row.group not in self.groups:
                continue
            hand.back.add(place)
            group = self.groups[row.group]
            found = group.with_more(row.place, more, step=step, finished=ended)
            self.groups[row.group] = found

    def advanced(self, replica: int, steps: int) -> None:
        """Record that a replica has run steps."""
        self.hands[replica].steps += steps

    def ended(self, replica: int) -> None:
        """Record that a replica has stopped: its open responses can be assigned to others."""
        self.hands.pop(replica, None)

    def lost(self, replica: int) -> int:
        """Unassign the requests of a lost replica, discarding what it did not return.

        Returns the maximum number of discarded tokens.
        """
        hand = self.hands.pop(replica, _Hand())
        return sum(
            min(hand.steps - since, self.longest - self._drawn(row))
            for place, (row, since) in enumerate(zip(hand.rows, hand.since, strict=True))
            if place not in hand.back and row.group in self.groups
        )

    def _load(self, replica: int) -> int:
        hand = self.hands.get(replica, _Hand())
        left = [row for place, row in enumerate(hand.rows) if place not in hand.back]
        return sum(self._tokens(row) for row in left if row.group in self.groups)

    def _drawn(self, row: DealtRow) -> int:
        return len(self.groups[row.group].sequences[row.place].tokens_N)

    def _tokens(self, row: DealtRow) -> int:
        return self.prompt_tokens(self.groups[row.group]) + self._drawn(row)
