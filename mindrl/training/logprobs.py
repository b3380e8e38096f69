"""Log-probs and entropies of tokens from the last hidden states, a chunk of rows at a time.

The logits of a whole micro-batch never exist: for 32,768 tokens and a vocabulary of 152,000 they
would take 20 GB. Each chunk of rows is multiplied, reduced to a log-prob and an entropy, and freed;
the backward pass multiplies it again.

Shapes: N tokens, C of them in a chunk, H the hidden size, V the tokens of this rank. The weight may
have more rows than V: padding with arbitrary values, which is never read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_BLOCKS = 8
"""Temporary copies take at most 1 / 8 of a chunk."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """This rank's part of the vocabulary, and how logits are computed."""

    size: int
    """Tokens of the model, over all ranks, without padding."""
    first_token: int
    """First token of this rank's part; every rank has at least one."""
    group: dist.ProcessGroup
    """Ranks that hold consecutive parts."""
    temperature: float
    """Divides the logits."""
    chunk_tokens: int
    """Number of rows with logits in memory at a time."""
    one_operator: bool = False
    """Whether log-probs come from torch's `log_softmax`, as the rollout engine's do. One rank must
    hold the whole vocabulary."""


def chunked_logprobs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor]:
    """Return the log-prob of each target and the entropy of each distribution, in nats, [N].

    A collective over the vocabulary's group. Differentiable in the hidden states and the weight,
    through both results; each rank's gradient of the hidden states is that of its own part of the
    vocabulary. If the weight has a `main_grad`, its gradient is added there, a part at a time, and
    `weight.grad` stays empty.

    Results are float32, or wider if the inputs are. Extra memory: less than two chunks of float32
    logits.
    """
    logprobs_N, entropy_N = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, targets_N, vocabulary
    )
    return logprobs_N, entropy_N


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight: Tensor, targets_N: Tensor, vocabulary: Vocabulary
    ) -> tuple[Tensor, Tensor]:
        hidden_NH, weight_VH = hidden_NH.to(weight.dtype), _real(weight, vocabulary)
        found_3N = torch.empty(3, len(targets_N), dtype=_wide(hidden_NH), device=hidden_NH.device)
        for rows in _slices(len(targets_N), vocabulary.chunk_tokens):
            # Do not bind the logits to a name: it would keep them alive while the next ones are
            # made.
            found_3N[:, rows] = _reduced(
                _logits(hidden_NH[rows], weight_VH, vocabulary), targets_N[rows], vocabulary
            )
        logprobs_N, entropy_N, log_total_N = found_3N
        # Not a saved tensor: the gradient is written to an attribute of this very object.
        ctx.weight, ctx.vocabulary = weight, vocabulary
        ctx.save_for_backward(hidden_NH, targets_N, entropy_N, log_total_N)
        return logprobs_N.clone(), entropy_N.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob_N: Tensor, grad_entropy_N: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None]:
        hidden_NH, targets_N, entropy_N, log_total_N = ctx.saved_tensors
        weight_VH = _real(ctx.weight, ctx.vocabulary)
        grad_NH = torch.empty_like(hidden_NH)
        # Megatron's own buffer, or one of the weight's shape.
        buffer: Tensor | None = getattr(ctx.weight, "main_grad", None)
        total = torch.zeros_like(ctx.weight, dtype=_wide(weight_VH)) if buffer is None else buffer
        columns_5N = (targets_N, entropy_N, log_total_N, grad_logprob_N, grad_entropy_N)
        for rows in _slices(len(targets_N), ctx.vocabulary.chunk_tokens):
            hidden_CH = hidden_NH[rows]
            grad_CV = _logit_gradient(
                _logits(hidden_CH, weight_VH, ctx.vocabulary),
                [column_N[rows] for column_N in columns_5N],
                ctx.vocabulary,
            ).to(weight_VH.dtype)
            grad_NH[rows] = grad_CV @ weight_VH
            _add_product(_real(total, ctx.vocabulary), grad_CV, hidden_CH, ctx.vocabulary)
            del grad_CV
        return grad_NH, total.to(weight_VH.dtype) if buffer is None else None, None, None


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _real(rows: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the rows without those that only pad the vocabulary."""
    tokens = vocabulary.size - vocabulary.first_token
    assert tokens > 0, "a rank has no tokens"
    return rows[:tokens]


def _logits(hidden_CH: Tensor, weight_VH: Tensor, vocabulary: Vocabulary) -> Tensor:
    logits_CV = functional.linear(hidden_CH, weight_VH)
    logits_CV = logits_CV.to(_wide(logits_CV))
    if vocabulary.temperature != 1.0:
        logits_CV /= vocabulary.temperature
    return logits_CV


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _reduced(logits_CV: Tensor, targets_C: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return log-prob, entropy and log of summed exponentials, [3, C]. Overwrites the logits."""
    exact_C = _by_one_operator(logits_CV, targets_C) if vocabulary.one_operator else None
    highest_C = logits_CV.amax(dim=-1)
    dist.all_reduce(highest_C, op=dist.ReduceOp.MAX, group=vocabulary.group)
    logits_CV -= highest_C[:, None]
    local_C, ours_C = _own(targets_C, logits_CV.size(1), vocabulary)
    chosen_C = logits_CV.gather(1, local_C[:, None])[:, 0].masked_fill(~ours_C, 0.0)
    total_C, weighted_C = torch.empty_like(chosen_C), torch.empty_like(chosen_C)
    for rows in _slices(len(logits_CV), -(-len(logits_CV) // _BLOCKS)):
        weights_RV = logits_CV[rows].exp()
        total_C[rows] = weights_RV.sum(-1)
        weights_RV *= logits_CV[rows]
        weighted_C[rows] = weights_RV.sum(-1)
    # One all-reduce for all three sums over the vocabulary.
    sums_3C = torch.stack((total_C, weighted_C, chosen_C))
    dist.all_reduce(sums_3C, group=vocabulary.group)
    total_C, weighted_C, chosen_C = sums_3C
    log_total_C = total_C.log()
    entropy_C = log_total_C - weighted_C / total_C
    logprobs_C = chosen_C - log_total_C if exact_C is None else exact_C
    return torch.stack((logprobs_C, entropy_C, highest_C + log_total_C))


def _by_one_operator(logits_CV: Tensor, targets_C: Tensor) -> Tensor:
    found_C = torch.empty_like(logits_CV[:, 0])
    for rows in _slices(len(logits_CV), -(-len(logits_CV) // _BLOCKS)):
        found_RV = logits_CV[rows].log_softmax(dim=-1)
        found_C[rows] = found_RV.gather(1, targets_C[rows, None])[:, 0]
    return found_C


def _logit_gradient(
    logits_CV: Tensor, columns_5C: Sequence[Tensor], vocabulary: Vocabulary
) -> Tensor:
    """Turn logits, in place, into the gradient with respect to the logits before the temperature.

    d logprob / d logit = onehot - p; d entropy / d logit = -p (log p + entropy).
    """
    targets_C, entropy_C, log_total_C, grad_logprob_C, grad_entropy_C = columns_5C
    for rows in _slices(len(logits_CV), -(-len(logits_CV) // _BLOCKS)):
        factor_RV = logits_CV[rows].sub_(log_total_C[rows, None])
        probs_RV = factor_RV.exp()
        factor_RV += entropy_C[rows, None]
        factor_RV *= grad_entropy_C[rows, None]
        factor_RV += grad_logprob_C[rows, None]
        factor_RV *= probs_RV.neg_()
    local_C, ours_C = _own(targets_C, logits_CV.size(1), vocabulary)
    logits_CV.scatter_add_(1, local_C[:, None], (grad_logprob_C * ours_C)[:, None])
    if vocabulary.temperature != 1.0:
        logits_CV /= vocabulary.temperature
    return logits_CV


def _own(targets_C: Tensor, tokens: int, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Return targets relative to this rank's first token, and a mask of those in its part."""
    local_C = targets_C - vocabulary.first_token
    return local_C.clamp(0, tokens - 1), (local_C >= 0) & (local_C < tokens)


def _add_product(
    sum_VH: Tensor, grad_CV: Tensor, hidden_CH: Tensor, vocabulary: Vocabulary
) -> None:
    """Add `grad_CV.T @ hidden_CH` to `sum_VH`, a block of the vocabulary at a time."""
    parts = _BLOCKS * -(-hidden_CH.size(1) // vocabulary.chunk_tokens)
    pairs = zip(sum_VH.tensor_split(parts), grad_CV.tensor_split(parts, dim=1), strict=True)
    for part_PH, grad_CP in pairs:
        part_PH.add_(grad_CP.T @ hidden_CH)
