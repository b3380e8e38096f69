"""What a step computed and what it computes when it is run again: equal to the bit, or named."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import torch

from mindrl.batch.rollouts import Rollouts

Number = float | None
"""None is not there, or not finite."""
_Named = tuple[str, Number, Number]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A number that is not what it was."""

    name: str
    recorded: Number
    replayed: Number


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How many numbers were compared, and which of them differ."""

    count: int
    differences: tuple[Difference, ...]

    def __add__(self, other: "Comparison") -> "Comparison":
        differences = (*self.differences, *other.differences)
        return Comparison(count=self.count + other.count, differences=differences)


def compare_metrics(recorded: Mapping[str, Number], replayed: Mapping[str, Number]) -> Comparison:
    """Compare metrics by name, in the order that they were recorded in."""
    names = [*dict.fromkeys((*recorded, *replayed))]
    pairs = ((name, recorded.get(name), replayed.get(name)) for name in names)
    return Comparison(count=len(names), differences=tuple(_differences(pairs)))


def compare_rollouts(recorded: Rollouts, replayed: Rollouts) -> Comparison:
    """Compare tokens and log-probs; of each response the first that differs is named."""
    lengths = (float(len(recorded)), float(len(replayed)))
    numbers: list[_Named] = [("number of responses", *lengths)]
    for row in range(int(min(lengths))):
        numbers += _first_apart(row, recorded, replayed)
    tokens = int(recorded.lengths_B.sum()) + int(recorded.response_mask_BT.sum())
    return Comparison(count=1 + tokens, differences=tuple(_differences(numbers)))


def _differences(numbers: Iterable[_Named]) -> Iterator[Difference]:
    for name, recorded, replayed in numbers:
        # As text: a zero has a sign.
        if repr(recorded) != repr(replayed):
            yield Difference(name=name, recorded=recorded, replayed=replayed)


def _first_apart(row: int, recorded: Rollouts, replayed: Rollouts) -> Iterator[_Named]:
    """Return the first token and the first log-prob of a response that differ."""
    for what in ("tokens_BT", "rollout_logprobs_BT"):
        ours, theirs = (
            getattr(each, what)[row, : int(each.lengths_B[row])] for each in (recorded, replayed)
        )
        if not torch.equal(ours, theirs):
            pairs = enumerate(zip_longest(ours.tolist(), theirs.tolist()))
            place, pair = next(each for each in pairs if each[1][0] != each[1][1])
            kind = "token" if what == "tokens_BT" else "log-prob"
            yield (f"{kind} {place} of response {row}", *pair)
