"""What caller, reward service and its workers send each other, and how foreign text is shown."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mindrl.rewards.functions import ScoreRange

SHOWN_CHARACTERS = 200

FailureKind = Literal["timeout", "crash", "exception", "value"]
"""No score in time; the process died; the function raised; it returned no finite number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolPlan:
    """The scoring processes to start."""

    functions: tuple[str, ...]
    timeout_seconds: float
    """For one response and one function."""
    processes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a response has no score."""

    kind: FailureKind
    detail: str
    """What happened, and the file and line of the function, on one line."""
    trace: str = ""
    """The calls that led to an exception, from the function on."""


Pairs = Sequence[tuple[str, str]]
"""Responses, each with the right answer."""
Ranges = Mapping[str, ScoreRange]
"""Of the scores, by function: the service has imported all functions, and its workers run."""
Outcome = float | Failure
Outcomes = Mapping[str, tuple[Outcome, ...]]
"""By function, in the order of the responses."""


def quoted(value: object) -> str:
    """Show a foreign value in at most 200 characters on one line: its head and its tail."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = SHOWN_CHARACTERS
    return shortener.repr(value)[:SHOWN_CHARACTERS]
