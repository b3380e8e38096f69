"""Divergence from a teacher over its most probable tokens, as a term of a loss.

The other tokens count as one, so that both distributions sum to 1. The divergence is at most that
of the whole vocabulary, equals it if the candidates are the vocabulary, and is 0 only if both
models agree on each candidate.

Shapes: B sequences, T positions, N response positions of this rank, K candidates.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindrl.algorithms.losses import Loss, LossInputs, LossTerms, weighted_sums
from mindrl.config.teacher import DivergenceForm

_SMALLEST_REST = 1e-7
"""Least probability of the other tokens: the rounding of a sum near 1 in float32."""
DIVERGENCE = "teacher_divergence"
"""Name of the term among the metrics of an update."""


def divergence(form: DivergenceForm, logprobs_NK: Tensor, teacher_NK: Tensor) -> Tensor:
    """Return the divergence at each position, [N], in nats.

    With q of the policy and p of the teacher, `reverse` is KL(q || p) and `forward` KL(p || q).
    """
    ours, theirs = _with_rest(logprobs_NK), _with_rest(teacher_NK)
    first, other = (ours, theirs) if form == "reverse" else (theirs, ours)
    return (first.exp() * (first - other)).sum(dim=-1)


def _with_rest(logprobs_NK: Tensor) -> Tensor:
    """Append the log-prob of all tokens that are no candidates."""
    total_N1 = logprobs_NK.logsumexp(dim=-1, keepdim=True).clamp(max=-_SMALLEST_REST)
    return torch.cat([logprobs_NK, (-torch.expm1(total_N1)).log()], dim=-1)


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
        alone, weights_BT, likely = self.own(inputs), inputs.weights_BT, inputs.likely
        assert likely is not None, "a teacher returns its most probable tokens"
        unused_N1 = (weights_BT.flatten()[likely.places_N] == 0)[:, None]
        logprobs_NK = likely.ours_NK.masked_fill(unused_N1, 0.0)
        teacher_NK = likely.theirs_NK.masked_fill(unused_N1, 0.0)
        found_N = divergence(self.form, logprobs_NK, teacher_NK)
        found_BT = found_N.new_zeros(weights_BT.numel()).scatter(0, likely.places_N, found_N)
        sums = weighted_sums({DIVERGENCE: found_BT.view(weights_BT.shape)}, weights_BT)
        loss = self.own_coef * alone.loss + self.coef * sums[DIVERGENCE]
        return LossTerms.of(loss, alone.metrics | inputs.means(sums))
