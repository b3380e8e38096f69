"""Rollouts with the inputs of an update, and the sequences of one optimizer step.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

from torch import Tensor

from mindrl.batch.packing import Compact
from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequences import Sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience(Rollouts):
    """Rollouts of one step with their log-probs and advantages."""

    old_logprobs_BT: Tensor | None
    advantages_BT: Tensor
    ref_logprobs_BT: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuedExperience(Experience):
    """Rollouts of one step with the critic's values and their targets."""

    old_values_BT: Tensor
    returns_BT: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedSequences(Sequences):
    """Sequences of one optimizer step, over all data-parallel ranks, with the weight of each token.

    All that supervised fine-tuning needs; other objectives add columns.
    """

    token_weights_BT: Tensor
    """float32; 0 outside the response; sums to 1 over the whole update."""
    weight_sum_B: Tensor | None = None
    """float32; sum of the weights of the whole update, for each sequence, if it is not 1. None if
    it is, or if no token has a weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlopedSequences(WeightedSequences):
    """Answers of one optimizer step on preferences."""

    slopes_BT: Tensor
    """float32; derivative of the loss by each token's log-prob or score, divided by its weight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch(WeightedSequences):
    """Sequences of one optimizer step of a policy."""

    old_logprobs_BT: Tensor | None
    """float32; from the policy at the start of the update. With None the update uses the log-probs
    that it computes itself."""
    advantages_BT: Tensor
    """float32; advantage of each token."""
    ref_logprobs_BT: Tensor | None
    """float32; from the reference model. None without a KL term."""
    rollout_logprobs_BT: Tensor | None = None
    """float32; from the engine that sampled the tokens. None without a correction for the
    mismatch."""
    picked_BT: Tensor | None = None
    """bool; tokens that the loss restrains. None if the loss restrains none."""
    entropy_coef_B: Tensor | None = None
    """float32; weight of the entropy bonus of each sequence. None uses the weight of the loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyUpdate(Compact):
    """Result of an optimizer step of the actor."""

    metrics: dict[str, float]
    logprobs_BT: Tensor | None
    """float32, nats; of this replica's response tokens before the step, 0 elsewhere. None if not
    requested, and on ranks without the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticMinibatch(WeightedSequences):
    """Sequences of one optimizer step of a critic."""

    old_values_BT: Tensor
    """float32; from the critic at the start of the updates."""
    returns_BT: Tensor
    """float32; targets of the values."""
