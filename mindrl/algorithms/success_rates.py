"""Success rates of several answers per prompt: avg@n and pass@k.

Shapes: P prompts, each answered n times.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_Z = statistics.NormalDist().inv_cdf(0.975)


class Rate(NamedTuple):
    """A fraction, 0 to 1, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def success_rates(shares: Sequence[float], samples: int) -> dict[str, Rate]:
    """Return avg@n and, for k = 2, 4, .. and n, pass@k, by name.

    Args:
        shares: Correctness of each answer, 0 to 1, grouped by prompt. Only 1 counts for pass@k.
        samples: Answers to each prompt, n.
    """
    groups = [shares[first : first + samples] for first in range(0, len(shares), samples)]
    right = [sum(share >= 1 for share in group) for group in groups]
    found = {f"avg@{samples}": rate([*map(statistics.fmean, groups)], samples)}
    for k in _counts(samples):
        found[f"pass@{k}"] = rate([pass_at_k(samples, each, k) for each in right], samples)
    return found


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Estimate the probability that one of k answers is right, from n >= k answers.

    Unbiased: the fraction of subsets of k of the n answers with a right one. arXiv 2107.03374, eq.
    1.
    """
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def rate(shares_P: Sequence[float], samples: int) -> Rate:
    """Return the mean over prompts with Wilson's interval (1927).

    Answers to one prompt are correlated, so the interval uses an effective number of independent
    answers, estimated from their variance over the prompts: at least one per prompt, at most all
    (the design effect of a cluster sample: Dean and Pagano 2015, 10.1093/jssam/smv024).
    """
    prompts, mean = len(shares_P), statistics.fmean(shares_P)
    spread = statistics.variance(shares_P) if prompts > 1 else 0.0
    independent = float(prompts)
    if spread:
        independent *= min(max(mean * (1 - mean) / spread, 1.0), samples)
    squared = _Z**2 / independent
    centre = (mean + squared / 2) / (1 + squared)
    half = math.sqrt(squared * (mean * (1 - mean) + squared / 4)) / (1 + squared)
    return Rate(mean, max(0.0, centre - half), min(1.0, centre + half))


def _counts(samples: int) -> Iterator[int]:
    k = 2
    while k < samples:
        yield k
        k *= 2
    if samples > 1:
        yield samples
