"""Policy losses per response token.

`rl_config.policy_loss` names one of `POLICY_LOSSES`, or your own function that takes `ChosenTokens`
and returns the loss of each token.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mindrl.algorithms.kl import MAX_LOG_RATIO, log_ratio
from mindrl.config.own_functions import named_function, trial

_FIELD = "rl_config.policy_loss"
Total = Callable[[Tensor], Tensor]
"""Sums a number per sequence, [B], over the ranks that share its tokens; without gradient."""


def of_one_rank(values_B: Tensor) -> Tensor:
    """Return the values unchanged: each sequence is on one rank."""
    return values_B


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLossOptions:
    """Options of the losses, for the whole run."""

    clip_low: float
    """The ratio is clipped below 1 - clip_low; `gmpo`: its logarithm below -clip_low."""
    clip_high: float
    """The ratio is clipped above 1 + clip_high; `gmpo`: its logarithm above clip_high."""
    dual_clip: float = 3.0
    """`dual_clip`: maximum of the ratio for negative advantages; above 1."""
    tau_positive: float = 1.0
    """`sapo`: steepness of the gate for positive advantages."""
    tau_negative: float = 1.05
    """`sapo`: the same for negative advantages."""
    kl_cov_coef: float = 1.0
    """`kl_cov`: coefficient of the penalty that keeps selected tokens near the old policy."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChosenTokens:
    """This rank's tokens of a micro-batch, each sampled by the old policy."""

    logprobs_BT: Tensor
    """Log-probs of the trained policy, with gradient, nats; 0 without a token."""
    old_logprobs_BT: Tensor
    """Log-probs of the policy at the start of the update."""
    advantages_BT: Tensor
    mask_BT: Tensor
    """bool; this rank's response tokens."""
    options: PolicyLossOptions
    total: Total = of_one_rank
    picked_BT: Tensor | None = None
    """bool; tokens with a large covariance. None if the loss does not use them."""

    def ratio(self) -> Tensor:
        """Return the ratio of each token to the old policy, clamped to e^-20 and e^20, [B, T]."""
        return log_ratio(self.logprobs_BT, self.old_logprobs_BT).exp()

    def clipped(self, ratio_BT: Tensor) -> Tensor:
        """Return a ratio clipped to its bounds."""
        return ratio_BT.clamp(1 - self.options.clip_low, 1 + self.options.clip_high)

    def sequence_mean(self, values_BT: Tensor) -> Tensor:
        """Return the mean over each sequence's tokens on all ranks, [B]; without gradient."""
        values_BT = values_BT.detach().masked_fill(~self.mask_BT, 0.0)
        tokens_B = self.total(self.mask_BT.sum(dim=1).to(values_BT.dtype))
        return self.total(values_BT.sum(dim=1)) / tokens_B.clamp(min=1)


Terms = Mapping[str, Tensor]
"""By name: `policy_loss`, and the metrics `clip_fraction` and `ratio`."""


def clipped(chosen: ChosenTokens) -> Terms:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A): PPO (arXiv 1707.06347) eq. 7.

    DAPO (arXiv 2503.14476) uses two different bounds. A token counts as clipped if the clipped
    branch is the smaller one, so that it has no gradient.
    """
    return _clipped(chosen, chosen.ratio())


def dual_clip(chosen: ChosenTokens) -> Terms:
    """Clip, and limit the loss of a negative advantage to -c * A: arXiv 1912.09729."""
    terms, gain_BT = _clipped(chosen, chosen.ratio()), chosen.advantages_BT
    most_BT = -chosen.options.dual_clip * gain_BT
    is_beyond_BT = (gain_BT < 0) & (terms["policy_loss"] > most_BT)
    loss_BT = torch.where(is_beyond_BT, most_BT, terms["policy_loss"])
    return {
        **terms,
        "policy_loss": loss_BT,
        "clip_fraction": terms["clip_fraction"] | is_beyond_BT,
    }


def gspo(chosen: ChosenTokens) -> Terms:
    """Clip the ratio of the sequence, the geometric mean of its tokens': GSPO (arXiv 2507.18071).

    Per token, like its GSPO-token: the ratio has the value of the sequence's and the gradient of
    the token's, so with equal weights in a sequence the gradient is the same.
    """
    log_BT = chosen.logprobs_BT - chosen.old_logprobs_BT
    log_B = chosen.sequence_mean(log_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return _clipped(chosen, log_B.exp()[:, None] * _one(chosen.logprobs_BT))


def gmpo(chosen: ChosenTokens) -> Terms:
    """Weight A by the geometric mean of the clipped ratios: GMPO (arXiv 2507.20673).

    Each logarithm is clipped on the side to which the advantage pushes it. Value and gradient are
    those of the sequence, per token as in `gspo`.
    """
    options, sign_BT = chosen.options, chosen.advantages_BT.sign()
    log_BT = log_ratio(chosen.logprobs_BT, chosen.old_logprobs_BT)
    limited_BT = log_BT.clamp(-options.clip_low, options.clip_high)
    kept_BT = sign_BT * torch.minimum(sign_BT * log_BT, sign_BT * limited_BT)
    mean_B = chosen.sequence_mean(kept_BT)
    ratio_BT = mean_B.exp()[:, None] * _one(kept_BT)
    return {
        "policy_loss": -ratio_BT * chosen.advantages_BT,
        "clip_fraction": sign_BT * limited_BT < sign_BT * log_BT,
        "ratio": ratio_BT,
    }


def cispo(chosen: ChosenTokens) -> Terms:
    """-sg(clip(ratio)) * A * log-prob: no token loses its gradient. CISPO (arXiv 2506.13585)."""
    ratio_BT = chosen.ratio().detach()
    weight_BT = chosen.clipped(ratio_BT)
    return {
        "policy_loss": -weight_BT * chosen.advantages_BT * chosen.logprobs_BT,
        "clip_fraction": weight_BT != ratio_BT,
        "ratio": ratio_BT,
    }


def sapo(chosen: ChosenTokens) -> Terms:
    """-4 / tau * sigmoid(tau * (ratio - 1)) * A: a soft gate. SAPO (arXiv 2511.20347).

    Negative advantages have a different tau.
    """
    options, gain_BT, ratio_BT = chosen.options, chosen.advantages_BT, chosen.ratio()
    tau_BT = torch.full_like(gain_BT, options.tau_negative)
    tau_BT = tau_BT.masked_fill(gain_BT > 0, options.tau_positive)
    gate_BT = (tau_BT * (ratio_BT - 1)).sigmoid() * 4 / tau_BT
    return {
        "policy_loss": -gate_BT * gain_BT,
        "clip_fraction": torch.zeros_like(chosen.mask_BT),
        "ratio": ratio_BT,
    }


def plain(chosen: ChosenTokens) -> Terms:
    """-A * log-prob: the policy gradient (REINFORCE), whichever policy sampled the tokens."""
    return {
        "policy_loss": -chosen.advantages_BT * chosen.logprobs_BT,
        "clip_fraction": torch.zeros_like(chosen.mask_BT),
        "ratio": chosen.ratio().detach(),
    }


def clip_cov(chosen: ChosenTokens) -> Terms:
    """Clip, and drop the gradient of a few tokens of large covariance: arXiv 2505.22617, eq. 12."""
    assert chosen.picked_BT is not None, "the trainer picks them"
    terms = _clipped(chosen, chosen.ratio())
    return {
        **terms,
        "policy_loss": terms["policy_loss"].masked_fill(chosen.picked_BT, 0.0),
        "clip_fraction": terms["clip_fraction"] | chosen.picked_BT,
    }


def kl_cov(chosen: ChosenTokens) -> Terms:
    """-ratio * A, with a penalty on tokens of the largest covariance: arXiv 2505.22617, eq. 14.

    The penalty is the absolute logarithm of their ratio to the old policy.
    """
    assert chosen.picked_BT is not None, "the trainer picks them"
    log_BT = log_ratio(chosen.logprobs_BT, chosen.old_logprobs_BT)
    ratio_BT = log_BT.exp()
    held_BT = chosen.options.kl_cov_coef * log_BT.abs().masked_fill(~chosen.picked_BT, 0.0)
    return {
        "policy_loss": held_BT - ratio_BT * chosen.advantages_BT,
        "clip_fraction": torch.zeros_like(chosen.mask_BT),
        "ratio": ratio_BT,
    }


PolicyLossFunction = Callable[[ChosenTokens], Tensor | Terms]
POLICY_LOSSES: Mapping[str, PolicyLossFunction] = {
    "clipped": clipped,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "plain": plain,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
}
"""Losses by their names in `rl_config.policy_loss`."""


def policy_terms(function: PolicyLossFunction, chosen: ChosenTokens) -> dict[str, Tensor]:
    """Return the loss and the metrics of each token, [B, T] each.

    Raises:
        TypeError: The function returned neither a tensor nor such a mapping.
        ValueError: A result has another shape.
    """
    found = function(chosen)
    if isinstance(found, Tensor):
        nothing_BT = torch.zeros_like(chosen.mask_BT)
        found = {"policy_loss": found, "clip_fraction": nothing_BT, "ratio": chosen.ratio()}
    if not isinstance(found, Mapping) or "policy_loss" not in found:
        raise TypeError("a policy loss returns a tensor, or a mapping with policy_loss")
    for name, term_BT in found.items():
        if term_BT.shape != chosen.mask_BT.shape:
            shapes = f"{list(term_BT.shape)}; need {list(chosen.mask_BT.shape)}"
            raise ValueError(f"{name} has shape {shapes}")
    return dict(found)


def resolve_policy_loss(name: str) -> PolicyLossFunction:
    """Return the named loss, or your own function after a trial with two responses.

    Raises:
        ConfigError: It does not exist, or returns a wrong result.
    """
    function: PolicyLossFunction = named_function(_FIELD, name, POLICY_LOSSES, "policy loss")
    if name not in POLICY_LOSSES:
        mask_BT = torch.arange(4) >= torch.tensor([[1], [3]])
        tried = ChosenTokens(
            logprobs_BT=(-1.0 * mask_BT).requires_grad_(),
            old_logprobs_BT=-1.0 * mask_BT,
            advantages_BT=torch.tensor([[1.0], [-1.0]]) * mask_BT,
            mask_BT=mask_BT,
            options=PolicyLossOptions(clip_low=0.2, clip_high=0.2),
        )
        with trial(_FIELD, name, "two responses"):
            torch.autograd.backward(policy_terms(function, tried)["policy_loss"].sum())
    return function


def _clipped(chosen: ChosenTokens, ratio_BT: Tensor) -> dict[str, Tensor]:
    free_BT = ratio_BT * chosen.advantages_BT
    limited_BT = chosen.clipped(ratio_BT) * chosen.advantages_BT
    return {
        "policy_loss": -torch.minimum(free_BT, limited_BT),
        "clip_fraction": limited_BT < free_BT,
        "ratio": ratio_BT,
    }


def _one(values_BT: Tensor) -> Tensor:
    """Return 1, with the gradient of exp(value) / exp(value) with a constant denominator."""
    return (values_BT - values_BT.detach()).exp()
