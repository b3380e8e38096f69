"""What stands in the place of a score that a function did not give."""

from collections.abc import Mapping, Sequence

from mindrl.rewards.messages import Failure, Outcome, Outcomes
from mindrl.rewards.score_range import ScoreRange


class WorstScores:
    """The worst score of each function: to fail must never pay better than to answer.

    That is the end of its range that costs reward, the highest where its weight is below 0; or
    what it has given so far, where that is beyond the end.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Take the weight of each function."""
        self._weights = weights
        self._worst: dict[str, float] = {}

    def filled(
        self, outcomes: Outcomes, ranges: Mapping[str, ScoreRange]
    ) -> dict[str, tuple[float, ...]]:
        """Return the scores by function, with the worst one for each failure."""
        return {
            function: self._filled(function, column, ranges[function])
            for function, column in outcomes.items()
        }

    def _filled(
        self, function: str, column: Sequence[Outcome], ends: ScoreRange
    ) -> tuple[float, ...]:
        rewarded = self._weights[function] >= 0
        worse, end = (min, ends.lowest) if rewarded else (max, ends.highest)
        given = (outcome for outcome in column if not isinstance(outcome, Failure))
        worst = worse([self._worst.get(function, end), *given])
        self._worst[function] = worst
        return tuple(worst if isinstance(outcome, Failure) else outcome for outcome in column)
