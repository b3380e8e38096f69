"""Results of a trial of reward functions: useless scores, or scores outside their range."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindrl.observability.units import quoted
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Outcome, Outcomes, Ready


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A remark about a function that gave scores."""

    function: str
    text: str
    refuses: bool
    """Whether the run must not start with it."""
    of_failure: bool = False
    """Whether it failed for one of the responses."""


def remarks(outcomes: Outcomes, responses: Sequence[str], facts: Ready) -> Iterator[Remark]:
    """Yield remarks on each function's scores of pairs: a right answer, and an empty response."""
    for function, column in outcomes.items():
        place = facts.places[function]
        yield from _failed(function, column, responses)
        scores = [each for each in map(_score, column) if each is not None]
        yield from _outside(function, place, scores, facts.ranges[function])
        if len({*scores}) == 1 and len(scores) == len(column):
            text = f"scores {scores[0]:g} for both a right answer and an empty response ({place})"
            yield Remark(function=function, text=text, refuses=False)


def _failed(function: str, column: Sequence[Outcome], texts: Sequence[str]) -> Iterator[Remark]:
    """Yield the first failure; empty responses first, since every model gives one some day."""
    failed = [(at, each) for at, each in enumerate(column) if isinstance(each, Failure)]
    for at, failure in sorted(failed, key=lambda pair: bool(texts[pair[0]]))[:1]:
        text = (
            f"fails in a trial call: {failure.kind}: {failure.detail}; the response was "
            f"{quoted(texts[at])}"
        )
        if not texts[at]:
            text += "; return the lowest score for a text without an answer"
        yield Remark(function=function, text=text, refuses=not texts[at], of_failure=True)


def _outside(
    function: str, place: str, scores: Sequence[float], ends: ScoreRange
) -> Iterator[Remark]:
    """Yield a score outside the range, which is 0 to 1 for functions that declare none."""
    outside = [each for each in scores if not ends.lowest <= each <= ends.highest]
    for score in outside[:1]:
        low, high = min(score, ends.lowest), max(score, ends.highest)
        text = (
            f"scores {score:g}, outside its range of {ends.lowest:g} to {ends.highest:g} "
            f"({place}); declare the range below the function: "
            f"its_name.score_range = ({low:g}, {high:g})"
        )
        yield Remark(function=function, text=text, refuses=ends != ScoreRange())


def _score(outcome: Outcome) -> float | None:
    if outcome is None or isinstance(outcome, Failure):
        return None
    return outcome if isinstance(outcome, (int, float)) else outcome.score
