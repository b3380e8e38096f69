"""Differences between the log-probs of the rollout engine and of the trainer.

Elements are computed in float32, sums in float64, by blocks of sequences that fit a processor's
cache: a step has many million tokens, and whole tensors would pass through memory a dozen times.

Shapes: B sequences, T positions, N response tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from mindrl.algorithms.kl import MAX_LOG_RATIO, log_ratio, low_variance
from mindrl.algorithms.rollout_correction import corrected
from mindrl.batch.rollouts import Rollouts
from mindrl.config.rl import RolloutCorrection
from mindrl.observability.metrics import Metrics
from mindrl.trainer.step_checks import UNKNOWN_GAPS

_ROWS = 64
"""Sequences of a block."""
GAP = ("logprob_gap/mean", "logprob_gap/max")
_DRIFT = ("drift/mean", "drift/max")
_BEYOND = {
    "truncate": "correction/truncated_fraction",
    "mask": "correction/masked_fraction",
}


class _Block(NamedTuple):
    """Response tokens of some sequences."""

    gap_N: Tensor
    """float32, nats; log of the engine's probability over the trainer's."""
    known_N: Tensor | None
    """bool; whether the gap is finite. None if all are."""
    old_N: Tensor | None
    """bool; tokens sampled with earlier weights. None if there are none."""
    counts_B: Tensor
    """int64; response tokens of each sequence."""


def _blocks(rollouts: Rollouts, logprobs_BT: Tensor) -> Iterator[_Block]:
    for start in range(0, len(rollouts), _ROWS):
        rows = slice(start, start + _ROWS)
        columns = slice(int(rollouts.lengths_B[rows].max()))
        mask_BT = rollouts.response_mask_BT[rows, columns]
        gap_BT = rollouts.rollout_logprobs_BT[rows, columns] - logprobs_BT[rows, columns]
        gap_N, ages_BT = gap_BT[mask_BT], rollouts.ages_BT
        known_N = gap_N.isfinite()
        yield _Block(
            gap_N=gap_N,
            known_N=None if known_N.all() else known_N,
            old_N=None if ages_BT is None else ages_BT[rows, columns][mask_BT] > 0,
            counts_B=mask_BT.sum(dim=1),
        )


@dataclass
class _Spread:
    """Mean and maximum of finite values that arrive in parts."""

    count: int = 0
    total: float = 0.0
    most: float = -inf

    def add(self, values_N: Tensor) -> None:
        if len(values_N):
            self.count += len(values_N)
            self.total += values_N.sum(dtype=torch.float64).item()
            self.most = max(self.most, values_N.max().item())

    def metrics(self, names: tuple[str, str]) -> Metrics:
        found = (self.total / self.count, self.most) if self.count else ()
        return dict(zip(names, found, strict=False))


@dataclass
class _Gaps:
    """Distances at tokens sampled with the newest weights, and at others."""

    new: _Spread = field(default_factory=_Spread)
    old: _Spread = field(default_factory=_Spread)
    unknown: int = 0
    """Tokens of the newest weights without a finite distance."""

    def add(self, block: _Block) -> None:
        gap_N, old_N, known_N = block.gap_N.abs(), block.old_N, block.known_N
        if known_N is not None:
            unknown_N = ~known_N if old_N is None else ~known_N & ~old_N
            self.unknown += int(unknown_N.sum())
            gap_N, old_N = gap_N[known_N], None if old_N is None else old_N[known_N]
        if old_N is not None:
            self.old.add(gap_N[old_N])
            gap_N = gap_N[~old_N]
        self.new.add(gap_N)

    def metrics(self) -> Metrics:
        counted = {UNKNOWN_GAPS: float(self.unknown)} if self.unknown else {}
        return counted | self.new.metrics(GAP) | self.old.metrics(_DRIFT)


@dataclass
class _Ratios:
    """Sums over the tokens with a finite gap."""

    tokens: int = 0
    kl: float = 0.0
    kl_low_variance: float = 0.0
    weights: float = 0.0
    squares: float = 0.0
    perplexities: list[Tensor] = field(default_factory=list)

    def add(self, block: _Block) -> None:
        gap_N, counts_B = block.gap_N, block.counts_B
        if block.known_N is not None:
            counts_B = _sums(block.known_N.double(), counts_B).long()
            gap_N = gap_N[block.known_N]
        # As `log_ratio`, for finite values.
        log_N = gap_N.neg().clamp_(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        self.tokens += len(gap_N)
        self.kl += gap_N.sum(dtype=torch.float64).item()
        self.kl_low_variance += low_variance(log_N).sum(dtype=torch.float64).item()
        weights_N = log_N.exp().double()
        self.weights += weights_N.sum().item()
        self.squares += weights_N.dot(weights_N).item()
        mean_B = _sums(log_N.double(), counts_B) / counts_B.clamp(min=1)
        self.perplexities.append((-mean_B).exp())

    def metrics(self) -> Metrics:
        return {
            "mismatch/kl": self.kl / self.tokens,
            "mismatch/kl_low_variance": self.kl_low_variance / self.tokens,
            "mismatch/perplexity_ratio": torch.cat(self.perplexities).mean().item(),
            "mismatch/effective_sample_size": self.weights**2 / (self.tokens * self.squares),
        }


def _sums(values_N: Tensor, counts_B: Tensor) -> Tensor:
    """Return the sum of the values of each sequence, given concatenated."""
    return torch.segment_reduce(values_N, "sum", lengths=counts_B, initial=0.0)


def logprob_gap(rollouts: Rollouts, logprobs_BT: Tensor) -> Metrics:
    """Return the log-prob gap at finite values, and the number of non-finite ones.

    Tokens sampled with earlier weights are reported as drift instead.
    """
    gaps = _Gaps()
    for block in _blocks(rollouts, logprobs_BT):
        gaps.add(block)
    return gaps.metrics()


def mean_and_max(names: tuple[str, str], gap_N: Tensor) -> Metrics:
    """Return mean and maximum of the finite values under these names; empty if there are none."""
    found = _Spread()
    found.add(gap_N[gap_N.isfinite()])
    return found.metrics(names)


def mismatch(
    rollouts: Rollouts, logprobs_BT: Tensor, correction: RolloutCorrection | None
) -> Metrics:
    """Return all mismatch metrics; non-finite values are counted, and excluded from the others."""
    gaps, ratios = _Gaps(), _Ratios()
    for block in _blocks(rollouts, logprobs_BT):
        gaps.add(block)
        ratios.add(block)
    if not ratios.tokens:
        return gaps.metrics()
    metrics = gaps.metrics() | ratios.metrics()
    return (
        metrics if correction is None else metrics | _corrections(rollouts, logprobs_BT, correction)
    )


def _corrections(rollouts: Rollouts, logprobs_BT: Tensor, correction: RolloutCorrection) -> Metrics:
    """Return metrics of the weights that correct the mismatch."""
    log_BT = log_ratio(logprobs_BT, rollouts.rollout_logprobs_BT)
    mask_BT = rollouts.response_mask_BT & log_BT.isfinite()
    found = corrected(correction, log_BT.masked_fill(~mask_BT, 0.0), mask_BT)
    weights_N = found.weights_BT[mask_BT]
    return {
        "correction/weight_mean": weights_N.mean().item(),
        "correction/effective_sample_size": effective_sample_size(weights_N),
        _BEYOND[correction.beyond]: found.beyond_BT[mask_BT].double().mean().item(),
        "correction/rejected_fraction": found.rejected_B.double().mean().item(),
    }


def effective_sample_size(weights_N: Tensor) -> float:
    """Return (sum w)^2 / (N sum w^2): 1 for equal weights, 0 if all are 0 (L. Kish)."""
    weights_N = weights_N.double()
    squares = weights_N.square().sum().item()
    return weights_N.sum().item() ** 2 / (len(weights_N) * squares) if squares else 0.0
