"""Rollouts with everything that an update needs, and the sequences of one optimizer step.

Shapes: B sequences, T positions.
"""

from dataclasses import dataclass

from torch import Tensor

from mindrl.batch.rollouts import Rollouts
from mindrl.batch.sequences import Sequences


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience(Rollouts):
    """The rollouts of one step with their log-probs and advantages."""

    old_logprobs_BT: Tensor | None
    advantages_BT: Tensor
    ref_logprobs_BT: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuedExperience(Experience):
    """The rollouts of one step with what their critic said of them, and should have said."""

    old_values_BT: Tensor
    returns_BT: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Minibatch(Sequences):
    """The sequences of one optimizer step of the actor, over all data-parallel ranks."""

    old_logprobs_BT: Tensor | None
    """float32; of the policy that the update starts from. None takes those that the update itself
    finds."""
    advantages_BT: Tensor
    """float32; how much better than expected the choice of a token was."""
    token_weights_BT: Tensor
    """float32; 0 outside the response; sums to 1 over the whole update."""
    ref_logprobs_BT: Tensor | None
    """float32; of the reference. None where the run has no KL term."""
    rollout_logprobs_BT: Tensor | None = None
    """float32; of the engine that drew the tokens. None where nothing makes up for it."""
    picked_BT: Tensor | None = None
    """bool; the tokens that the loss holds back. None of a loss that holds none."""
    entropy_coef_B: Tensor | None = None
    """float32; the weight of the entropy bonus, once for each sequence. None takes that of the
    loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyUpdate:
    """What an optimizer step of the actor says."""

    metrics: dict[str, float]
    logprobs_BT: Tensor | None
    """float32, nats; of the tokens of this replica's responses before the step, 0 elsewhere. None
    where nobody asks, and on ranks without the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CriticMinibatch(Sequences):
    """The sequences of one optimizer step of the critic, over all data-parallel ranks."""

    old_values_BT: Tensor
    """float32; of the critic that the updates start from."""
    returns_BT: Tensor
    """float32; what the critic should have said."""
    token_weights_BT: Tensor
    """float32; 0 outside the response; sums to 1 over the whole update."""
