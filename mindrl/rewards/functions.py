r"""Reward functions: their types, and the built-in ones for correctness and format.

`base_acc`, `math_verify_reward` and `acc_for_dapo` require the formats that MindSpeed-RL's
verifiers of these names require; answers are compared by `math_verify`.
"""

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from mindrl.config.returned_number import LARGEST_SCORE

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])
RewardFunction = Callable[[str, str], float]
"""Response text, reference answer -> score."""

MAX_BOXED_CHARACTERS = 4096
"""A longer boxed answer counts as wrong without parsing, which may take minutes."""

_STRUCTURE = ("<think>", "</think>", "<answer>", "</answer>")
_LONGEST_DAPO_ANSWER = 300
_ANSWER_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""An escaped brace is a character of the answer."""
_CLOSING = re.compile(r"[\s.$!*)\]\\]*")


class ScoreRange(NamedTuple):
    """Minimum and maximum score of a function."""

    lowest: float = 0.0
    highest: float = 1.0

    def share(self, score: float) -> float:
        """Return the position of a score in the range, clamped to 0 to 1."""
        return min(max((score - self.lowest) / (self.highest - self.lowest), 0.0), 1.0)


def scores(lowest: float, highest: float) -> Callable[[FunctionT], FunctionT]:
    """Declare the range of the decorated function, if it is not 0 to 1."""

    def declared(function: FunctionT) -> FunctionT:
        vars(function)["score_range"] = ScoreRange(lowest, highest)
        return function

    return declared


def score_range(function: Callable[..., object]) -> ScoreRange:
    """Return the attribute `score_range` of a function, or 0 to 1 without one.

    Raises:
        ValueError: it is not two numbers within `LARGEST_SCORE`, the lower one first.
    """
    match found := getattr(function, "score_range", ScoreRange()):
        case (int() | float() as lowest, int() | float() as highest) if (
            -LARGEST_SCORE <= lowest < highest <= LARGEST_SCORE
        ):
            return ScoreRange(float(lowest), float(highest))
        case _:
            raise ValueError(
                f"has score_range={found!r}; need (lowest, highest), both finite and at most "
                f"{LARGEST_SCORE:g} in size"
            )


def math_verify(response: str, reference: str) -> float:
    r"""Score 1.0 if the last \boxed{...} of the response equals the reference, else 0.0.

    Equality is math-verify's: exact, symbolic, or to 6 decimals. The reference may be a number,
    LaTeX, or a GSM8K solution ending in `#### 72`. The time limit is enforced by `RewardScorer`,
    not here.
    """
    boxed = last_boxed(response)
    if boxed is None:
        return 0.0
    return float(_equal(boxed.strip().rstrip(".,;: "), reference_answer(reference)))


def boxed_format(response: str, reference: str) -> float:  # noqa: ARG001 - every reward takes both
    r"""Score 1.0 if the response shows work, then ends with its only \boxed{...}, else 0.0."""
    openings = list(_BOXED.finditer(response))
    if len(openings) != 1:
        return 0.0
    start, inside = openings[0].span()
    end = _closing_brace(response, inside)
    if end is None or not response[inside:end].strip():
        return 0.0
    shows_work = any(character.isalnum() for character in response[:start])
    return float(shows_work and _CLOSING.fullmatch(response, end + 1) is not None)


def base_acc(response: str, reference: str) -> float:
    r"""Score 1.0 for the right box in `<think>...</think>...<answer>...\boxed{}...</answer>`.

    Each tag stands there once, and so does the box, in this order; nothing stands before or behind.
    """
    once = all(response.count(tag) == 1 for tag in _STRUCTURE)
    if not once or len(_BOXED.findall(response)) != 1:
        return 0.0
    return math_verify_reward(response, reference)


def math_verify_reward(response: str, reference: str) -> float:
    """Score 1.0 as `base_acc`, but tags and boxes may occur more than once."""
    think, think_end, answer, answer_end = _STRUCTURE
    if not (response.startswith(think) and response.endswith(answer_end)):
        return 0.0
    _, _, behind = response.partition(think_end)
    _, _, answered = behind.partition(answer)
    inside = answered.removesuffix(answer_end)
    if answered == inside or last_boxed(inside) is None:
        return 0.0
    return math_verify(response, reference)


@scores(-1.0, 1.0)
def acc_for_dapo(response: str, reference: str) -> float:
    """Score 1.0 if the line after the last `Answer:` equals the reference, else -1.0.

    Only the last 300 characters are read.
    """
    answers = _ANSWER_LINE.findall(response[-_LONGEST_DAPO_ANSWER:])
    if not answers:
        return -1.0
    line = answers[-1].strip().rstrip(".,;: ")
    boxed = last_boxed(line)
    found = line.strip("$ ") if boxed is None else boxed.strip()
    return 1.0 if _equal(found, reference_answer(reference)) else -1.0


def last_boxed(text: str) -> str | None:
    r"""Return what the last \boxed{...} holds; None if none, unclosed or too long."""
    openings = [found.end() for found in _BOXED.finditer(text)]
    if not openings:
        return None
    inside = text[openings[-1] : openings[-1] + MAX_BOXED_CHARACTERS + 1]
    end = _closing_brace(inside, 0)
    return None if end is None else inside[:end]


def reference_answer(reference: str) -> str:
    r"""Return the answer of a reference: after GSM8K's last `####`, and out of \boxed{...}."""
    answer = reference.rpartition("####")[2].strip()
    boxed = last_boxed(answer)
    return answer if boxed is None else boxed.strip()


def _closing_brace(text: str, start: int) -> int | None:
    """Return the position of the brace that closes the one just before `start`."""
    depth = 1
    for found in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.start()
    return None


def _equal(found: str, reference: str) -> bool:
    """Compare two answers by their text, then by their meaning."""
    if not found or not reference:
        return False
    if found == reference:
        return True
    # Imported late: a check of a configuration compares no answers, and sympy is slow to import.
    from mindrl.rewards.answers import mean_the_same  # noqa: PLC0415

    return mean_the_same(found, reference)


_BUILTIN = (acc_for_dapo, base_acc, boxed_format, math_verify, math_verify_reward)
BUILTIN_REWARDS: dict[str, RewardFunction] = {each.__name__: each for each in _BUILTIN}
COMPARING_REWARDS = frozenset(BUILTIN_REWARDS) - {boxed_format.__name__}
"""Functions that compare with a reference answer."""
