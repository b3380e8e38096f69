"""Log-probs and entropies of tokens over a vocabulary that is split between ranks.

Shapes: N tokens, V the vocabulary of this rank.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _VocabParallelLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, targets_N: Tensor, first_token: int, group: Any
    ) -> tuple[Tensor, Tensor]:
        highest_N = logits_NV.amax(dim=-1)
        dist.all_reduce(highest_N, op=dist.ReduceOp.MAX, group=group)
        shifted_NV = logits_NV - highest_N[:, None]
        probs_NV = shifted_NV.exp()
        local_N = targets_N - first_token
        ours_N = (local_N >= 0) & (local_N < logits_NV.size(-1))
        local_N = local_N.clamp(0, logits_NV.size(-1) - 1)
        chosen_N = shifted_NV.gather(1, local_N[:, None])[:, 0].masked_fill(~ours_N, 0.0)
        # One reduction for all three sums over the vocabulary.
        sums_3N = torch.stack((probs_NV.sum(-1), (probs_NV * shifted_NV).sum(-1), chosen_N))
        dist.all_reduce(sums_3N, group=group)
        total_N, weighted_N, chosen_N = sums_3N
        log_total_N = total_N.log()
        entropy_N = log_total_N - weighted_N / total_N
        probs_NV /= total_N[:, None]
        ctx.save_for_backward(probs_NV, local_N, ours_N, entropy_N)
        return chosen_N - log_total_N, entropy_N

    @staticmethod
    def backward(
        ctx: Any, grad_logprob_N: Tensor, grad_entropy_N: Tensor
    ) -> tuple[Tensor, None, None, None]:
        probs_NV, local_N, ours_N, entropy_N = ctx.saved_tensors
        # d logprob / d logit = onehot - p;  d entropy / d logit = -p (log p + entropy)
        grad_NV = torch.special.xlogy(probs_NV, probs_NV) + probs_NV * entropy_N[:, None]
        grad_NV *= -grad_entropy_N[:, None]
        grad_NV -= probs_NV * grad_logprob_N[:, None]
        grad_NV.scatter_add_(1, local_N[:, None], (grad_logprob_N * ours_N)[:, None])
        return grad_NV, None, None, None


def vocab_parallel_logprobs(
    logits_NV: Tensor, targets_N: Tensor, *, first_token: int, group: dist.ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Return log-prob of each target and entropy of each distribution, in nats, float [N].

    A collective over `group`, whose ranks hold consecutive parts of the vocabulary; this
    rank's part begins at `first_token`. Differentiable in the logits, through both results.
    Logits should be float32 or wider. Padding tokens carry a huge negative finite logit.
    """
    logprobs_N, entropy_N = _VocabParallelLogprobs.apply(  # type: ignore[no-untyped-call]
        logits_NV, targets_N, first_token, group
    )
    return logprobs_N, entropy_N
