"""Divergence from a teacher over its most probable tokens, as a term of a loss.

The other tokens count as one, so that both distributions sum to 1. The divergence is at most that
of the whole vocabulary, equals it if the candidates are the vocabulary, and is 0 only if both
models agree on each candidate.

Shapes: B sequences, T positions, K candidates.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mindrl.algorithms.losses import Loss, LossInputs, LossTerms, weighted_sums
from mindrl.config.teacher import DivergenceForm

_SMALLEST_REST = 1e-7
"""Least probability of the other tokens: the rounding of a sum near 1 in float32."""
DIVERGENCE = "teacher_divergence"
"""Name of the term among the metrics of an update."""


def divergence(form: DivergenceForm, logprobs_BTK: Tensor, teacher_BTK: Tensor) -> Tensor:
    """Return the divergence at each position, [B, T], in nats.

    With q of the policy and p of the teacher, `reverse` is KL(q || p) and `forward` KL(p || q).
    """
    ours, theirs = _with_rest(logprobs_BTK), _with_rest(teacher_BTK)
    first, other = (ours, theirs) if form == "reverse" else (theirs, ours)
    return (first.exp() * (first - other)).sum(dim=-1)


def _with_rest(logprobs_BTK: Tensor) -> Tensor:
    """Append the log-prob of all tokens that are no candidates."""
    total_BT1 = logprobs_BTK.logsumexp(dim=-1, keepdim=True).clamp(max=-_SMALLEST_REST)
    return torch.cat([logprobs_BTK, (-torch.expm1(total_BT1)).log()], dim=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaughtLoss:
    """A loss with the divergence from a teacher as another term."""

    own: Loss[Any]
    """The loss without a teacher."""
    own_coef: float = 1.0
    """Coefficient of that loss."""
    form: DivergenceForm
    coef: float
    """Coefficient of the divergence."""

    def __call__(self, inputs: LossInputs[Any]) -> LossTerms:
        """Return own_coef * own + coef * sum(weights * divergence); ignores values of weight 0."""
        alone = self.own(replace(inputs, outputs=inputs.outputs[:2]))
        unused_BT1 = (inputs.weights_BT == 0)[..., None]
        logprobs_BTK = torch.stack(inputs.outputs[2:], dim=-1).masked_fill(unused_BT1, 0.0)
        teacher_BTK = inputs.batch.candidate_logprobs_BTK.masked_fill(unused_BT1, 0.0)
        found_BT = divergence(self.form, logprobs_BTK, teacher_BTK)
        sums = weighted_sums({DIVERGENCE: found_BT}, inputs.weights_BT)
        loss = self.own_coef * alone.loss + self.coef * sums[DIVERGENCE]
        return LossTerms.of(loss, alone.metrics | sums)
