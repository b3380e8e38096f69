"""Compare the results of a step with those of its replay, bit for bit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import torch

from mindrl.batch.rollouts import Rollouts

Number = float | None
"""None if missing or not finite."""
_Named = tuple[str, Number, Number]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A number that differs."""

    name: str
    recorded: Number
    replayed: Number


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Number of compared numbers, and those that differ."""

    count: int
    differences: tuple[Difference, ...]

    def __add__(self, other: "Comparison") -> "Comparison":
        differences = (*self.differences, *other.differences)
        return Comparison(count=self.count + other.count, differences=differences)


def compare_metrics(recorded: Mapping[str, Number], replayed: Mapping[str, Number]) -> Comparison:
    """Compare metrics by name, in recorded order."""
    names = [*dict.fromkeys((*recorded, *replayed))]
    pairs = ((name, recorded.get(name), replayed.get(name)) for name in names)
    return Comparison(count=len(names), differences=tuple(_differences(pairs)))


def compare_rollouts(recorded: Rollouts, replayed: Rollouts) -> Comparison:
    """Compare tokens and log-probs; report the first difference of each response."""
    lengths = (float(len(recorded)), float(len(replayed)))
    numbers: list[_Named] = [("number of responses", *lengths)]
    for row in range(int(min(lengths))):
        numbers += _first_apart(row, recorded, replayed)
    tokens = int(recorded.lengths_B.sum()) + int(recorded.response_mask_BT.sum())
    return Comparison(count=1 + tokens, differences=tuple(_differences(numbers)))


def _differences(numbers: Iterable[_Named]) -> Iterator[Difference]:
    for name, recorded, replayed in numbers:
        # Compared as text, because zeros have signs.
        if repr(recorded) != repr(replayed):
            yield Difference(name=name, recorded=recorded, replayed=replayed)


def _first_apart(row: int, recorded: Rollouts, replayed: Rollouts) -> Iterator[_Named]:
    """Yield the first token and the first log-prob of a response that differ."""
    for what in ("tokens_BT", "rollout_logprobs_BT"):
        ours, theirs = (
            getattr(each, what)[row, : int(each.lengths_B[row])] for each in (recorded, replayed)
        )
        if not torch.equal(ours, theirs):
            pairs = enumerate(zip_longest(ours.tolist(), theirs.tolist()))
            place, pair = next(each for each in pairs if each[1][0] != each[1][1])
            kind = "token" if what == "tokens_BT" else "log-prob"
            yield (f"{kind} {place} of response {row}", *pair)
