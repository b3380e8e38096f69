"""Differences between the log-probs of the rollout engine and of the trainer.

Shapes: B sequences, T positions, N response tokens.
"""

from torch import Tensor

from mindrl.algorithms.kl import kl_estimate, log_ratio, low_variance
from mindrl.algorithms.rollout_correction import corrected
from mindrl.batch.rollouts import Rollouts
from mindrl.config.rl import RolloutCorrection
from mindrl.observability.metrics import Metrics
from mindrl.trainer.step_checks import UNKNOWN_GAPS

GAP = ("logprob_gap/mean", "logprob_gap/max")
_DRIFT = ("drift/mean", "drift/max")
_BEYOND = {
    "truncate": "correction/truncated_fraction",
    "mask": "correction/masked_fraction",
}


def logprob_gap(rollouts: Rollouts, logprobs_BT: Tensor) -> Metrics:
    """Return the log-prob gap at finite values, and the number of non-finite ones.

    Tokens sampled with earlier weights are reported as drift instead.
    """
    gap_BT = (rollouts.rollout_logprobs_BT - logprobs_BT).abs()
    mask_BT, drift = rollouts.response_mask_BT, dict[str, float]()
    if rollouts.ages_BT is not None:
        drift = mean_and_max(_DRIFT, gap_BT[mask_BT & (rollouts.ages_BT > 0)])
        mask_BT = mask_BT & (rollouts.ages_BT == 0)
    gap_N = gap_BT[mask_BT]
    unknown = int((~gap_N.isfinite()).sum())
    metrics = {UNKNOWN_GAPS: float(unknown)} if unknown else {}
    return metrics | mean_and_max(GAP, gap_N) | drift


def mean_and_max(names: tuple[str, str], gap_N: Tensor) -> Metrics:
    """Return mean and maximum of the finite values under these names; empty if there are none."""
    known_N = gap_N[gap_N.isfinite()]
    found = (known_N.mean().item(), known_N.max().item()) if len(known_N) else ()
    return dict(zip(names, found, strict=False))


def mismatch(
    rollouts: Rollouts, logprobs_BT: Tensor, correction: RolloutCorrection | None
) -> Metrics:
    """Return all mismatch metrics; non-finite values are counted, and excluded from the others."""
    metrics, drawn_BT = logprob_gap(rollouts, logprobs_BT), rollouts.rollout_logprobs_BT
    kl_BT = kl_estimate(drawn_BT, logprobs_BT, "k1")
    mask_BT = rollouts.response_mask_BT & kl_BT.isfinite()
    if not mask_BT.any():
        return metrics
    log_BT = log_ratio(logprobs_BT, drawn_BT).masked_fill(~mask_BT, 0.0)
    lengths_B = mask_BT.sum(dim=1).clamp(min=1)
    metrics |= {
        "mismatch/kl": kl_BT[mask_BT].mean().item(),
        "mismatch/kl_low_variance": low_variance(log_BT)[mask_BT].mean().item(),
        "mismatch/perplexity_ratio": (-log_BT.sum(dim=1) / lengths_B).exp().mean().item(),
        "mismatch/effective_sample_size": effective_sample_size(log_BT[mask_BT].exp()),
    }
    if correction is None:
        return metrics
    found = corrected(correction, log_BT, mask_BT)
    weights_N = found.weights_BT[mask_BT]
    return metrics | {
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
