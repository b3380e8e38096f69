"""Losses of the policy and of PPO's critic.

The policy's loss has a term for its chosen tokens, the KL to a reference and an entropy bonus; the
critic's is a clipped squared error. Every loss is a weighted sum over tokens.

Shapes: B sequences, T positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from mindrl.algorithms.kl import KlKind, kl_estimate, log_ratio
from mindrl.algorithms.policy_losses import (
    ChosenTokens,
    PolicyLossFunction,
    PolicyLossOptions,
    Total,
    clipped,
    of_one_rank,
    policy_terms,
)
from mindrl.algorithms.rollout_correction import corrected
from mindrl.batch.experience import CriticMinibatch, Minibatch
from mindrl.config.rl import RolloutCorrection


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossTerms:
    """Contribution of one micro-batch to an update."""

    loss: Tensor
    """0-dim, with gradient."""
    metrics: dict[str, Tensor]
    """Detached 0-dim weighted sums: their sum over micro-batches and ranks is the mean."""

    @classmethod
    def of(cls, loss: Tensor, sums: Mapping[str, Tensor]) -> Self:
        """Create terms from a loss and the sums to report."""
        return cls(loss=loss, metrics={name: term.detach() for name, term in sums.items()})


def weighted_sums(terms_BT: Mapping[str, Tensor], weights_BT: Tensor) -> dict[str, Tensor]:
    """Return the weighted sum of each term over the tokens."""
    return {name: (weights_BT * term_BT).sum() for name, term_BT in terms_BT.items()}


def used(name: str, values_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Set values without weight to 0 before any arithmetic: 0 * NaN is NaN, also backward.

    Raises:
        ValueError: if the shapes differ.
    """
    if values_BT.shape != weights_BT.shape:
        raise ValueError(
            f"{name} has shape {list(values_BT.shape)}; "
            f"it must be that of token_weights_BT, {list(weights_BT.shape)}"
        )
    return values_BT.masked_fill(weights_BT == 0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyLoss:
    """A policy loss with KL to a reference, as GRPO's (arXiv 2402.03300), and entropy."""

    kl_kind: KlKind
    kl_coef: float
    """Coefficient of the KL term; with 0 no reference is needed."""
    entropy_coef: float
    """Coefficient of the entropy bonus; above 0 rewards entropy."""
    options: PolicyLossOptions
    function: PolicyLossFunction = clipped
    """Policy loss of each token."""
    total: Total = of_one_rank
    """Sums a number per sequence over the ranks that share its tokens."""
    picked_BT: Tensor | None = None
    """Tokens of this micro-batch that the function restrains."""
    correction: RolloutCorrection | None = None
    """Correction for the engine that sampled the tokens; None without one."""
    left_out_BT: Tensor | None = None
    """Tokens of this micro-batch that are measured but not trained on. None trains on all."""

    def __call__(
        self,
        *,
        logprobs_BT: Tensor,
        entropy_BT: Tensor,
        old_logprobs_BT: Tensor | None,
        advantages_BT: Tensor,
        token_weights_BT: Tensor,
        ref_logprobs_BT: Tensor | None,
    ) -> LossTerms:
        """Return sum(weights * (policy + kl_coef * kl - entropy_coef * entropy)) and its terms.

        All tensors are [B, T]; `logprobs_BT` and `entropy_BT` carry the gradient, in nats. Excluded
        tokens do not enter the loss, but count in the metrics of KL and entropy. Values with weight
        0 are ignored, even NaN. With kl_coef = 0 the reference is optional and only measured.
        Without old log-probs the new ones are used: this must be the first update of the policy.

        Raises:
            ValueError: if shapes differ, or the reference is None while kl_coef is not 0.
        """
        if ref_logprobs_BT is None and self.kl_coef != 0:
            raise ValueError(f"ref_logprobs_BT is None; kl_coef={self.kl_coef} needs log-probs")
        weights_BT = token_weights_BT
        new_BT = used("logprobs_BT", logprobs_BT, weights_BT)
        if old_logprobs_BT is None:
            old_logprobs_BT = new_BT.detach()
        old_BT = used("old_logprobs_BT", old_logprobs_BT, weights_BT)
        learned_BT = weights_BT
        if self.left_out_BT is not None:
            learned_BT = weights_BT.masked_fill(self.left_out_BT, 0.0)
        chosen = ChosenTokens(
            logprobs_BT=used("logprobs_BT", new_BT, learned_BT),
            old_logprobs_BT=used("old_logprobs_BT", old_BT, learned_BT),
            advantages_BT=used("advantages_BT", advantages_BT, learned_BT),
            mask_BT=learned_BT != 0,
            options=self.options,
            total=self.total,
            picked_BT=self.picked_BT,
        )
        terms_BT = policy_terms(self.function, chosen)
        terms_BT["entropy"] = used("entropy_BT", entropy_BT, weights_BT)
        # Tokens were sampled from the old policy, so this estimates KL(old || new).
        terms_BT["kl_old"] = kl_estimate(old_BT, new_BT, "k3")
        if ref_logprobs_BT is not None:
            ref_BT = used("ref_logprobs_BT", ref_logprobs_BT, weights_BT)
            terms_BT["kl"] = kl_estimate(new_BT, ref_BT, self.kl_kind)
        sums = learned = weighted_sums(terms_BT, weights_BT)
        if self.left_out_BT is not None:
            learned = weighted_sums(terms_BT, learned_BT)
        loss = learned["policy_loss"] - self.entropy_coef * learned["entropy"]
        if "kl" in learned:
            loss = loss + self.kl_coef * learned["kl"]
        return LossTerms.of(loss, sums)

    def of_minibatch(
        self, read: tuple[Tensor, ...], minibatch: Minibatch, own_BT: Tensor, total: Total
    ) -> LossTerms:
        """Return the loss of a rank's tokens of a micro-batch that is on the host.

        `read` are log-probs and entropies, with gradient; `own_BT` is 1 for the tokens of this
        rank, 0 elsewhere. The correction for the engine multiplies the advantages.
        """
        logprobs_BT, entropy_BT = read
        device = own_BT.device

        def there(column_BT: Tensor | None) -> Tensor | None:
            return None if column_BT is None else column_BT.to(device)

        old_BT, advantages_BT = there(minibatch.old_logprobs_BT), minibatch.advantages_BT.to(device)
        weights_BT, left_out_BT = minibatch.token_weights_BT.to(device) * own_BT, None
        if self.correction is not None:
            drawn_BT = there(minibatch.rollout_logprobs_BT)
            assert drawn_BT is not None, "what is corrected was drawn by an engine"
            start_BT = logprobs_BT if old_BT is None else old_BT
            log_BT = log_ratio(start_BT.detach(), drawn_BT)
            found = corrected(self.correction, log_BT, weights_BT != 0, total)
            advantages_BT = advantages_BT * found.weights_BT
            left_out_BT = found.weights_BT == 0
        given_B, entropy_coef = minibatch.entropy_coef_B, self.entropy_coef
        if given_B is not None:
            entropy_coef = given_B[0].item()
        bound = replace(
            self,
            total=total,
            entropy_coef=entropy_coef,
            picked_BT=there(minibatch.picked_BT),
            left_out_BT=left_out_BT,
        )
        return bound(
            logprobs_BT=logprobs_BT,
            entropy_BT=entropy_BT,
            old_logprobs_BT=old_BT,
            advantages_BT=advantages_BT,
            token_weights_BT=weights_BT,
            ref_logprobs_BT=there(minibatch.ref_logprobs_BT),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueLoss:
    """Half the squared error of the value, or of the value clipped near the old one: the larger.

    The clipped value loss of PPO's reference implementation (github.com/openai/baselines, ppo2), as
    in MindSpeed-RL, verl and TRL. The larger error counts, so a value beyond the range has no
    gradient, unless it moved away from its return.
    """

    clip_range: float
    """In units of reward: the clipped value is within the old value -/+ clip_range."""

    def __call__(
        self,
        *,
        values_BT: Tensor,
        old_values_BT: Tensor,
        returns_BT: Tensor,
        token_weights_BT: Tensor,
    ) -> LossTerms:
        """Return sum(weights * 0.5 * max((v - return)^2, (clipped v - return)^2)) and its terms.

        All tensors are [B, T]; `values_BT` carries the gradient. Values with weight 0 are ignored,
        even NaN.

        Raises:
            ValueError: if shapes differ.
        """
        weights_BT = token_weights_BT
        values_BT = used("values_BT", values_BT, weights_BT)
        old_BT = used("old_values_BT", old_values_BT, weights_BT)
        returns_BT = used("returns_BT", returns_BT, weights_BT)
        # Adding a clipped difference to the old value would round values inside the range too.
        near_BT = values_BT.clamp(old_BT - self.clip_range, old_BT + self.clip_range)
        free_BT = (values_BT - returns_BT).square()
        limited_BT = (near_BT - returns_BT).square()
        terms_BT = {
            "value_loss": 0.5 * torch.maximum(free_BT, limited_BT),
            "clip_fraction": limited_BT > free_BT,
            "value": values_BT,
        }
        sums = weighted_sums(terms_BT, weights_BT)
        return LossTerms.of(sums["value_loss"], sums)

    def of_minibatch(
        self,
        read: tuple[Tensor, ...],
        minibatch: CriticMinibatch,
        own_BT: Tensor,
        total: Total,  # noqa: ARG002 - no sum over a sequence
    ) -> LossTerms:
        """Return the loss of a rank's tokens, as for a policy; `read` are values."""
        (values_BT,) = read
        device = own_BT.device
        return self(
            values_BT=values_BT,
            old_values_BT=minibatch.old_values_BT.to(device),
            returns_BT=minibatch.returns_BT.to(device),
            token_weights_BT=minibatch.token_weights_BT.to(device) * own_BT,
        )
