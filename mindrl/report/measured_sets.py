"""Results of one evaluation of a model, by set."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mindrl.report.run_record import Line, json_lines, read_run

HELD_OUT = "held-out file"
_ACCURACY = "evaluation/accuracy"
_RATE = re.compile(r"eval/(.+)/((?:avg|pass)@\d+)")


@dataclass(frozen=True, kw_only=True)
class MeasuredSet:
    """Results on one set."""

    name: str
    samples: int
    """Answers per prompt."""
    prompts: int
    rates: Mapping[str, tuple[float, float, float]]
    """Rates by name, such as `avg@8`, with both ends of the 95 % interval."""
    reward: float
    """Mean over the answers, like the two below."""
    response_tokens: float
    cut_fraction: float
    """Fraction that reached the maximum length."""


def measured_sets(folder: Path) -> Iterator[MeasuredSet]:
    """Yield the results of the evaluation that wrote a folder.

    Raises:
        OutputError: It is no evaluation, or a file of it cannot be read.
    """
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in read_run(folder).metrics:
        for name in row:
            match = _RATE.fullmatch(name)
            if match or name == _ACCURACY:
                of_set, rate = match.groups() if match else (HELD_OUT, "avg@1")
                ends = (row[name], row[f"{name}_low"], row[f"{name}_high"])
                found.setdefault(of_set, {})[rate] = ends
    for of_set, rates in found.items():
        file = "evaluations.jsonl" if of_set == HELD_OUT else f"evaluations/{of_set}.jsonl"
        yield _measured(of_set, rates, [*json_lines(folder / file)])


def _measured(
    name: str, rates: Mapping[str, tuple[float, float, float]], answers: Sequence[Line]
) -> MeasuredSet:
    samples = int(next(iter(rates)).partition("@")[2])
    return MeasuredSet(
        name=name,
        samples=samples,
        prompts=len(answers) // samples,
        rates=rates,
        reward=fmean(each["reward"] for each in answers),
        response_tokens=fmean(each["response_tokens"] for each in answers),
        cut_fraction=fmean(not each["finished"] for each in answers),
    )
