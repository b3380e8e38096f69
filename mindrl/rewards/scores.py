"""What came of rating a batch of responses."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mindrl.rewards.messages import Failure, FailureKind, Outcomes
from mindrl.rewards.score_range import ScoreRange


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """Responses of a batch to which a function gave no score, all of one kind."""

    function: str
    count: int
    first: Failure
    response: int
    """Place of the first in the batch."""

    @property
    def kind(self) -> FailureKind:
        """What happened to them."""
        return self.first.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Rewards of a batch of responses, in the order of the responses."""

    rewards: tuple[float, ...]
    """Weighted sum over the functions."""
    parts: Mapping[str, tuple[float, ...]]
    """Unweighted scores by function; the worst one where an answer failed."""
    ranges: Mapping[str, ScoreRange]
    """Of the functions."""
    failures: tuple[Failures, ...]
    """One for each function and kind."""

    def failed(self, *kinds: FailureKind) -> int:
        """Count the scores that were not given, for one of these reasons."""
        return sum(each.count for each in self.failures if each.kind in kinds)

    def without_any_score(self) -> Iterator[Failures]:
        """Yield the first failures of each function that failed for the whole batch."""
        for function in functions_without_scores(self.failures, len(self.rewards)):
            yield next(each for each in self.failures if each.function == function)

    def accuracy(self, function: str) -> float:
        """Return where the scores of a function lie in its range, on average: 0 to 1."""
        return statistics.fmean(map(self.ranges[function].share, self.parts[function]))

    def metrics(self) -> dict[str, float]:
        """Return mean and population standard deviation, the mean of each part, and the counts."""
        parts = {f"reward/{name}": statistics.fmean(part) for name, part in self.parts.items()}
        return {
            "reward/mean": statistics.fmean(self.rewards),
            "reward/std": statistics.pstdev(self.rewards),
            **parts,
            "reward/timeouts": float(self.failed("timeout")),
            "reward/crashes": float(self.failed("crash")),
            "reward/errors": float(self.failed("exception", "value")),
        }


def failures_of(outcomes: Outcomes) -> tuple[Failures, ...]:
    """Count the failures of each function and kind."""
    found: dict[tuple[str, FailureKind], Failures] = {}
    for function, column in outcomes.items():
        for place, outcome in enumerate(column):
            if isinstance(outcome, Failure):
                new = Failures(function=function, count=0, first=outcome, response=place)
                seen = found.get((function, outcome.kind), new)
                found[function, outcome.kind] = replace(seen, count=seen.count + 1)
    return tuple(found.values())


def functions_without_scores(failures: Sequence[Failures], responses: int) -> list[str]:
    """Return the functions that failed for each of so many responses."""
    counts: Counter[str] = Counter()
    for each in failures:
        counts[each.function] += each.count
    return [function for function, count in counts.items() if count == responses]
