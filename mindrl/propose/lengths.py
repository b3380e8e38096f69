"""Lengths of responses: from an earlier run's files, or from a mean and a tail."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow.compute as pc

from mindrl.errors import DataError
from mindrl.observability.checked_parquet import read_checked_parquet
from mindrl.observability.regular_files import read_regular

SAMPLED_GROUPS = 2048
_NINETY_NINTH = 2.3263
"""99th percentile of a normal distribution, in standard deviations."""
LARGEST_TAIL = math.exp(_NINETY_NINTH**2 / 2)
"""Maximum ratio of 99th percentile to mean of a lognormal distribution."""


def stored_groups(folder: Path) -> tuple[list[list[int]], float]:
    """Read the lengths of responses, prompt by prompt, and the mean length of the prompts.

    Reads the files that `megatron_training.keep_rollouts` writes.

    Raises:
        DataError: There are none, or one cannot be read.
    """
    files = sorted(folder.glob("*.parquet"))
    if not files:
        need = "the folder `rollouts` of a run with megatron_training.keep_rollouts"
        raise DataError(f"{folder} has no .parquet files; use {need}")
    groups: dict[tuple[Path, int], list[int]] = defaultdict(list)
    prompts: list[int] = []
    names = ["group", "prompt_token_ids", "response_token_ids"]
    for path in files:
        try:
            table = read_checked_parquet(read_regular(path))
            asked, answered = (pc.list_value_length(table[name]).to_pylist() for name in names[1:])
            numbers = table["group"].to_pylist()
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"cannot read the responses of a step from {path}: {error}") from error
        prompts += asked
        for group, length in zip(numbers, answered, strict=True):
            groups[path, group].append(length)
    return [*groups.values()], sum(prompts) / len(prompts)


def sampled_groups(
    mean: float, p99: float, longest: int, samples: int, *, seed: int = 0
) -> list[list[int]]:
    """Draw lengths from a lognormal distribution, capped at `longest`.

    `mean` and `p99`, the 99th percentile, are those before the cap; p99 is at most `LARGEST_TAIL`
    times the mean.
    """
    # p99 / mean is exp(z s - s^2 / 2) for the deviation s of the logarithms.
    root = math.sqrt(max(0.0, _NINETY_NINTH**2 - 2 * math.log(p99 / mean)))
    deviation = _NINETY_NINTH - root
    median, random = mean * math.exp(-(deviation**2) / 2), Random(seed)

    def length() -> int:
        return min(longest, max(1, round(median * math.exp(deviation * random.gauss(0, 1)))))

    return [[length() for _ in range(samples)] for _ in range(SAMPLED_GROUPS)]


def described(groups: Sequence[Sequence[int]]) -> tuple[float, int, int]:
    """Return mean, 99th percentile and maximum of the lengths."""
    lengths = sorted(length for group in groups for length in group)
    return sum(lengths) / len(lengths), lengths[len(lengths) * 99 // 100], lengths[-1]
