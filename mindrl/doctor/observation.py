"""One line of the doctor's answer."""

from dataclasses import dataclass
from typing import Literal

from mindrl.observability.units import GIB

Verdict = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Observation:
    """What was looked at, what was found, and what to do about it."""

    what: str
    found: str
    verdict: Verdict = "ok"
    advice: str = ""
    """Empty where all is well."""


def gib(nbytes: int) -> str:
    """Write bytes as GiB."""
    return f"{nbytes / GIB:.1f} GiB"
