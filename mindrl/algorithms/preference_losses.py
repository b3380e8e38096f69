"""Losses of preferences, and their slopes with regard to the log-prob or score of each answer.

A pair couples two sequences, which micro-batches and ranks separate. The trainer therefore computes
the slopes from a forward pass, and the update is a sum of log-probs, or of scores, weighted by
them: its gradient is that of the loss.

Shapes: P pairs, B answers, S steps of answers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from mindrl.algorithms.losses import LossInputs, LossTerms, weighted_sums
from mindrl.batch.experience import SlopedSequences
from mindrl.config.preference import PreferenceConfig

SURROGATE = "preference_surrogate"
"""Name of the update's own loss, which has the gradient of the loss but not its value."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreferenceLosses:
    """A loss of preferences, of one update."""

    losses_B: Tensor
    """float64; of each pair, of each answer for KTO, or of each step."""
    rewards_B: Tensor
    """float64; beta times the log-ratio of each whole answer, also if the loss divides it by the
    number of tokens (as in TRL), or the score of each answer or step."""
    slopes_B: Tensor
    """float64; derivative of the mean loss by each log-prob of an answer, or by each score."""


def pair_losses(config: PreferenceConfig, ratios_B: Tensor, tokens_B: Tensor) -> PreferenceLosses:
    """Return the losses of pairs; all chosen answers come before all rejected ones.

    `sigmoid` is DPO (arXiv 2305.18290) eq. 7, smoothed as conservative DPO; `ipo` is arXiv
    2310.12036 eq. 17 on mean log-probs; `hinge` is SLiC (arXiv 2305.10425).

    Args:
        config: Form and constants.
        ratios_B: float64; log-prob of each answer less that of the reference, in nats.
        tokens_B: Target tokens of each answer.
    """

    def losses(leaf_B: Tensor) -> Tensor:
        scores_B = leaf_B / tokens_B if config.loss in ("ipo", "sigmoid_norm") else leaf_B
        chosen_P, rejected_P = scores_B.chunk(2)
        return _of_margins(config, chosen_P - rejected_P)

    return _with_slopes(losses, ratios_B, config.beta)


def _with_slopes(
    losses: Callable[[Tensor], Tensor], read_B: Tensor, beta: float
) -> PreferenceLosses:
    """Return the losses of the log-ratios or scores of answers, and the slopes of their mean."""
    with torch.enable_grad():
        leaf_B = read_B.detach().requires_grad_()
        found = losses(leaf_B)
        (slopes_B,) = torch.autograd.grad(found.mean(), leaf_B)
    return PreferenceLosses(losses_B=found.detach(), rewards_B=beta * read_B, slopes_B=slopes_B)


def _of_margins(config: PreferenceConfig, margins_P: Tensor) -> Tensor:
    beta, wrong = config.beta, config.label_smoothing
    if config.loss == "ipo":
        return (margins_P - 1 / (2 * beta)) ** 2
    if config.loss == "hinge":
        return (1 - beta * margins_P).relu()
    return -(1 - wrong) * logsigmoid(beta * margins_P) - wrong * logsigmoid(-beta * margins_P)


def label_losses(
    config: PreferenceConfig, ratios_B: Tensor, desirable_B: Tensor, kl: Tensor
) -> PreferenceLosses:
    """Return the losses of labelled answers: KTO (arXiv 2402.01306) eq. 8.

    Args:
        config: Constants.
        ratios_B: As for `pair_losses`.
        desirable_B: bool; the label of each answer.
        kl: 0-dim, 0 or more; the reference point, without gradient.
    """

    def losses(leaf_B: Tensor) -> Tensor:
        gains_B = torch.where(desirable_B, leaf_B - kl, kl - leaf_B)
        good, bad = config.desirable_weight, config.undesirable_weight
        weights_B = torch.where(desirable_B, good, bad).to(leaf_B.dtype)
        return weights_B * (1 - (config.beta * gains_B).sigmoid())

    return _with_slopes(losses, ratios_B, config.beta)


def ranking_losses(
    config: PreferenceConfig, scores_B: Tensor, margins_P: Tensor
) -> PreferenceLosses:
    """Return the losses of a reward model on pairs; all chosen answers come before all others.

    Bradley-Terry's (arXiv 2203.02155 eq. 1) with the margin of arXiv 2307.09288 eq. 2, and the
    centring of arXiv 2312.09244, as in TRL.

    Args:
        config: Weight of the centring.
        scores_B: float64.
        margins_P: float64; least difference of each pair.
    """

    def losses(leaf_B: Tensor) -> Tensor:
        chosen_P, rejected_P = leaf_B.chunk(2)
        losses_P = -logsigmoid(chosen_P - rejected_P - margins_P)
        return losses_P + config.center_rewards_coefficient * (chosen_P + rejected_P).square()

    return _with_slopes(losses, scores_B, beta=1.0)


def score_losses(scores_B: Tensor, wanted_B: Tensor) -> PreferenceLosses:
    """Return the squared error of each score, float64."""
    errors_B = scores_B - wanted_B
    return PreferenceLosses(
        losses_B=errors_B.square(), rewards_B=scores_B, slopes_B=2 * errors_B / len(errors_B)
    )


def step_losses(scores_S: Tensor, labels_S: Tensor) -> PreferenceLosses:
    """Return the cross-entropy of each step (arXiv 2305.20050).

    Args:
        scores_S: float64; log-odds that the step is right.
        labels_S: float64; 0 to 1, the probability that it is right.
    """

    def losses(leaf_S: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(leaf_S, labels_S, reduction="none")

    return _with_slopes(losses, scores_S, beta=1.0)


def kl_of_mismatched(ratios_B: Tensor) -> Tensor:
    """Return KTO's estimate of the KL: the mean log-ratio of other prompts' answers, at least 0."""
    return ratios_B.mean().clamp(min=0)


def sloped_loss(inputs: LossInputs[SlopedSequences]) -> LossTerms:
    """Return the sum of log-probs or scores weighted by the slopes; of log-probs also entropy."""
    read_BT, *entropies = inputs.outputs
    slopes_BT = inputs.used("slopes_BT", inputs.batch.slopes_BT)
    terms_BT = {SURROGATE: slopes_BT * inputs.used("outputs_BT", read_BT)}
    for entropy_BT in entropies:
        terms_BT["entropy"] = inputs.used("entropy_BT", entropy_BT)
    sums = weighted_sums(terms_BT, inputs.weights_BT)
    return LossTerms.of(sums[SURROGATE], sums)
