"""Per-token estimates of KL(policy || reference), and probability ratios.

Shapes: B sequences, T positions.
"""

from typing import Literal, assert_never

import torch
from torch import Tensor

KlKind = Literal["k1", "kl", "k2", "mse", "k3", "low_var_kl", "abs"]
"""Schulman's names, and names of the same estimates in MindSpeed-RL and verl."""
MAX_LOG_RATIO = 20.0
"""Bound in nats, as in MindSpeed-RL and verl: e^20 is 5e8; float32 overflows at e^88."""


def log_ratio(logprobs_BT: Tensor, other_logprobs_BT: Tensor) -> Tensor:
    """Return log(p / other p) of each token, clamped to +-`MAX_LOG_RATIO`.

    A token beyond the bound has no gradient. Without the bound, exp would give inf, and the
    backward pass 0 * inf = NaN, even for a token whose ratio is clipped later and has no gradient.
    An infinite log-prob is an error, which the bound must not hide: it gives NaN.
    """
    ratio_log_BT = logprobs_BT - other_logprobs_BT
    ratio_log_BT = ratio_log_BT.masked_fill(ratio_log_BT.isinf(), torch.nan)
    return ratio_log_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def low_variance(ratio_log_BT: Tensor) -> Tensor:
    """Return k3 of a `log_ratio`, of the other policy over the one that sampled the tokens."""
    # expm1 keeps the digits that exp(x) - 1 loses if the two policies almost agree.
    return torch.expm1(ratio_log_BT) - ratio_log_BT


def kl_estimate(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: KlKind) -> Tensor:
    """Estimate KL(policy || reference), in nats, at each token sampled from the policy.

    With d = logprob - ref_logprob:

    - `k1` or `kl`: d. Unbiased, high variance, may be negative.
    - `k2` or `mse`: d**2 / 2. Biased, low variance.
    - `k3` or `low_var_kl`: exp(-d) + d - 1. Unbiased, low variance, never negative.
    - `abs`: |d|.

    J. Schulman, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html. For k3,
    `log_ratio` clamps d to +-20; a token beyond that bound has no gradient. Unlike in MindSpeed-RL
    and verl, the estimate itself is not clamped to 10.
    """
    match kind:
        case "k1" | "kl":
            return logprobs_BT - ref_logprobs_BT
        case "k2" | "mse":
            return 0.5 * (logprobs_BT - ref_logprobs_BT).square()
        case "k3" | "low_var_kl":
            ratio_log_BT = log_ratio(ref_logprobs_BT, logprobs_BT)
            return low_variance(ratio_log_BT)
        case "abs":
            return (logprobs_BT - ref_logprobs_BT).abs()
        case _:
            assert_never(kind)
