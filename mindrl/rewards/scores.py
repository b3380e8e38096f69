"""Messages between caller, reward service and its workers, and the scores of a batch."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

from mindrl.rewards.functions import ScoreRange

FailureKind = Literal["timeout", "crash", "exception", "value"]
"""No score in time; the process died; the function raised; it returned no finite number."""

_TAKEN = (
    *("mean", "std", "model", "environment", "overlong", "baseline", "kl"),
    *("timeouts", "crashes", "errors", "failed_share"),
)
"""Reserved names of rewards and their metrics."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedReward:
    """A reward function, as defined by a configuration and its data."""

    name: str
    kwargs: str = "{}"
    """JSON of its configured arguments."""
    columns: tuple[str, ...] = ()
    """Columns of the data rows."""
    answer_column: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan:
    """The scoring processes to start."""

    rewards: tuple[NamedReward, ...]
    timeout_seconds: float
    """Time limit for one response and one function."""
    processes: int
    prints: Path | None = None
    """File for the output of functions; None discards it."""
    patience_seconds: float = 600.0
    """Time of failures in a row after which a function is hopeless."""
    is_trial: bool = False
    """Whether a list of wrong length fails for all its responses: a mistake to be reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a response has no score."""

    kind: FailureKind
    detail: str
    """The error, and the file and line of the function, on one line."""
    trace: str = ""
    """Traceback of an exception, starting at the function."""


ArgumentRows = Sequence[tuple[Any, ...]]
"""Arguments of a function for each response, in the order of its parameters."""
RowsByFunction = Mapping[str, ArgumentRows]
"""Arguments by function."""
Ranges = Mapping[str, ScoreRange]
"""Ranges of the scores, by function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Sent when the service has imported all functions, and its workers run."""

    ranges: Ranges
    fields: Mapping[str, tuple[str, ...]]
    """Fields of each response that a function uses, named as in `RewardSignature.bound`."""
    places: Mapping[str, str]
    """File and line by function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """A score with a separate accuracy."""

    score: float
    accuracy: float
    """Accuracy from 0 to 1."""


Outcome = float | Graded | Failure | None
"""None: the function does not apply to this response."""
Outcomes = Mapping[str, tuple[Outcome, ...]]
"""Outcomes by function, in the order of the responses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failures:
    """Responses of a batch for which a function failed in the same way."""

    function: str
    count: int
    first: Failure
    response: int
    """Index of the first in the batch."""

    @property
    def kind(self) -> FailureKind:
        """Kind of the failure."""
        return self.first.kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Rewards of a batch of responses, in the order of the responses."""

    rewards: tuple[float, ...]
    """Weighted sums over the functions."""
    components: Mapping[str, tuple[float | None, ...]]
    """Unweighted scores by function: the worst one if it failed, None if it was not called or does
    not apply."""
    ranges: Ranges
    """Ranges of the functions' scores."""
    failures: tuple[Failures, ...]
    """One entry for each function and kind."""
    left_out: int = 0
    """Number of responses that were scored but dropped; `failures` includes theirs."""
    left_out_of: Mapping[str, int] = field(default_factory=dict)
    """The same by function; a function that is not listed was called for all of them."""
    sources: tuple[str, ...] = ()
    """The `data_source` of each; empty without sources."""
    judges: Mapping[str, str] = field(default_factory=dict)
    """The function that measures accuracy, by source."""
    accuracies: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Accuracy of each response, 0 to 1, from functions that return it separately."""

    @property
    def rated(self) -> int:
        """Number of scored responses, including dropped ones."""
        return len(self.rewards) + self.left_out

    @property
    def scored_counts(self) -> dict[str, int]:
        """Number of responses that each function scored, including dropped ones."""
        return {
            name: len(part) - part.count(None) + self.left_out_of.get(name, self.left_out)
            for name, part in self.components.items()
        }

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the scores of batches."""
        counts = [len(part.rewards) for part in parts]
        components = _columns([part.components for part in parts], counts)
        sources = [part.sources or ("",) * len(part.rewards) for part in parts]
        return cls(
            rewards=tuple(chain.from_iterable(part.rewards for part in parts)),
            components=components,
            ranges=parts[0].ranges,
            failures=_together(parts),
            left_out=sum(part.left_out for part in parts),
            left_out_of={
                name: sum(part.left_out_of.get(name, part.left_out) for part in parts)
                for name in components
            },
            sources=tuple(chain.from_iterable(sources)) if any(map(any, sources)) else (),
            judges=parts[0].judges,
            accuracies=_columns([part.accuracies for part in parts], counts),
        )

    def rows(self, rows: Sequence[int]) -> Self:
        """Keep some responses; failures of the others are still counted."""
        kept = {
            name: tuple(scores[row] for row in rows) for name, scores in self.components.items()
        }
        return replace(
            self,
            rewards=tuple(self.rewards[row] for row in rows),
            components=kept,
            left_out=self.rated - len(rows),
            left_out_of={
                name: count - (len(rows) - kept[name].count(None))
                for name, count in self.scored_counts.items()
            },
            sources=tuple(self.sources[row] for row in rows) if self.sources else (),
            accuracies={
                name: tuple(column[row] for row in rows) for name, column in self.accuracies.items()
            },
        )

    def plus(self, name: str, scores: tuple[float, ...], weight: float = 1.0) -> Self:
        """Add a component, with its weight, to the rewards."""
        pairs = zip(self.rewards, scores, strict=True)
        return replace(
            self,
            rewards=tuple(reward + weight * score for reward, score in pairs),
            components={**self.components, name: scores},
        )

    def parts(self, row: int) -> dict[str, float]:
        """Return the components of one reward, by name."""
        names = shown_names(self.ranges)
        found = {names.get(name, name): part[row] for name, part in self.components.items()}
        return {name: score for name, score in found.items() if score is not None}

    def failed(self, *kinds: FailureKind) -> int:
        """Return the number of missing scores of these kinds."""
        return sum(each.count for each in self.failures if each.kind in kinds)

    def without_any_score(self) -> list[Failures]:
        """Return the first failures of each function that failed for the whole batch."""
        return without_any_score(self.failures, self.scored_counts)

    def fatal(self, on_failure: str) -> list[str]:
        """Return a line for each function that ends the run, by `rl_config.on_reward_failure`."""
        ending = {"stop": self.failures, "stop_if_all_fail": self.without_any_score(), "worst": ()}
        return [
            f"rl_config.verifier_function={each.function!r}: no score for "
            f"{each.count if on_failure == 'stop' else 'any'} of {self.rated} responses; "
            f"the first: {each.kind}: {each.first.detail}; rl_config.on_reward_failure={on_failure}"
            for each in ending[on_failure]
        ]

    def shares(self, function: str) -> list[float]:
        """Return the accuracy of each response, 0 to 1, by the function of its source.

        That is the accuracy that the function returns, such as verl's `acc`, otherwise the position
        of the score in its range. `function` is used for responses without a source.
        """
        sources = self.sources or ("",) * len(self.rewards)
        return [
            self._share(self.judges.get(source, function), row)
            for row, source in enumerate(sources)
        ]

    def _share(self, judge: str, row: int) -> float:
        if judge in self.accuracies and (said := self.accuracies[judge][row]) is not None:
            return said
        score = self.components[judge][row]
        # A function that does not apply to a response does not make it right.
        return 0.0 if score is None else self.ranges[judge].share(score)

    def metrics(self) -> dict[str, float]:
        """Return mean and population standard deviation, each component's mean, and the counts."""
        names = shown_names(self.ranges)
        components = {
            f"reward/{names.get(name, name)}": _mean(given)
            for name, part in self.components.items()
            if (given := [each for each in part if each is not None])
        }
        mean = _mean(self.rewards)
        return {
            "reward/mean": mean,
            "reward/std": statistics.pstdev(self.rewards) if math.isfinite(mean) else math.nan,
            **components,
            "reward/timeouts": float(self.failed("timeout")),
            "reward/crashes": float(self.failed("crash")),
            "reward/errors": float(self.failed("exception", "value")),
            **self._failed_share(),
            **self._source_metrics(),
        }

    def _failed_share(self) -> dict[str, float]:
        """Return the fraction of missing scores; empty if there are none."""
        failed = sum(each.count for each in self.failures)
        return {"reward/failed_share": failed / sum(self.scored_counts.values())} if failed else {}

    def _source_metrics(self) -> dict[str, float]:
        """Return the fraction of each source, its mean reward and its accuracy."""
        metrics: dict[str, float] = {}
        for source in dict.fromkeys(filter(None, self.sources)):
            rows = [row for row, each in enumerate(self.sources) if each == source]
            metrics[f"data/{source}/share"] = len(rows) / len(self.sources)
            metrics[f"data/{source}/reward"] = _mean([self.rewards[row] for row in rows])
            if self.judges:
                shares = self.shares(next(iter(self.judges.values())))
                metrics[f"data/{source}/accuracy"] = _mean([shares[row] for row in rows])
        return metrics


def _columns(
    parts: Sequence[Mapping[str, tuple[float | None, ...]]], counts: Sequence[int]
) -> dict[str, tuple[float | None, ...]]:
    """Concatenate columns of batches; None for batches without a column."""
    names = dict.fromkeys(chain.from_iterable(parts))
    return {
        name: tuple(
            chain.from_iterable(
                part.get(name, (None,) * count) for part, count in zip(parts, counts, strict=True)
            )
        )
        for name in names
    }


def shown_names(functions: Iterable[str]) -> dict[str, str]:
    """Return short names for metrics: the function's name, or file and function.

    If several functions share a name, or a metric has it, the file is prepended; if that is not
    enough, they keep their full name.
    """
    taken, left, shown = Counter(_TAKEN), [*functions], dict[str, str]()
    for parts in (1, 2):
        short = {name: _short_name(name, parts) for name in left}
        met = Counter(short.values()) + taken
        shown |= {name: text for name, text in short.items() if met[text] == 1}
        left = [name for name in left if name not in shown]
        taken = Counter([*_TAKEN, *shown.values()])
    return shown | {name: name for name in left}


def _short_name(name: str, parts: int) -> str:
    place, _, function = name.rpartition(":")
    if not place or "://" in name:
        return name
    file = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
    return function if parts == 1 else f"{file}.{function}"


def _mean(numbers: Sequence[float]) -> float:
    """Return the mean; NaN if not all are finite, as with a reward model's."""
    return statistics.fmean(numbers) if all(map(math.isfinite, numbers)) else math.nan


def _together(parts: Sequence[Scores]) -> tuple[Failures, ...]:
    """Return the failures of each function and kind over concatenated batches."""
    found: dict[tuple[str, FailureKind], Failures] = {}
    before = 0
    for part in parts:
        for each in part.failures:
            new = replace(each, count=0, response=before + each.response)
            seen = found.get((each.function, each.kind), new)
            found[each.function, each.kind] = replace(seen, count=seen.count + each.count)
        before += len(part.rewards)
    return tuple(found.values())


def failures_of(outcomes: Outcomes) -> tuple[Failures, ...]:
    """Return the failures of each function and kind."""
    found: dict[tuple[str, FailureKind], Failures] = {}
    for function, column in outcomes.items():
        for place, outcome in enumerate(column):
            if isinstance(outcome, Failure):
                new = Failures(function=function, count=0, first=outcome, response=place)
                seen = found.get((function, outcome.kind), new)
                found[function, outcome.kind] = replace(seen, count=seen.count + 1)
    return tuple(found.values())


def without_any_score(failures: Sequence[Failures], counts: Mapping[str, int]) -> list[Failures]:
    """Return the first failures of each function that failed for all its responses."""
    by_function: dict[str, list[Failures]] = {}
    for each in failures:
        by_function.setdefault(each.function, []).append(each)
    return [
        kinds[0]
        for function, kinds in by_function.items()
        if sum(each.count for each in kinds) == counts[function]
    ]


@dataclass
class WorstScores:
    """The worst score of each function: failing must never pay more than answering.

    It is the end of its range with the lower reward, the maximum if its weight is below 0; or the
    worst score given so far, if that is beyond the end.
    """

    weights: Mapping[str, float]
    """Weight of each function."""
    found: dict[str, float] = field(default_factory=dict)
    """Worst score so far of each function, at least the end of its range."""

    def filled(
        self, outcomes: Mapping[str, tuple[float | Failure | None, ...]], ranges: Ranges
    ) -> dict[str, tuple[float | None, ...]]:
        """Return the scores by function, with the worst score for each failure."""
        filled = {}
        for function, column in outcomes.items():
            ends, rewarded = ranges[function], self.weights[function] >= 0
            worse, end = (min, ends.lowest) if rewarded else (max, ends.highest)
            given = (each for each in column if isinstance(each, float))
            worst = worse([self.found.get(function, end), *given])
            self.found[function] = worst
            filled[function] = tuple(
                worst if isinstance(each, Failure) else each for each in column
            )
        return filled
