"""Log-probs and entropies of tokens from the last hidden states, a chunk of rows at a time.

The logits of a whole micro-batch never exist: for 32,768 tokens and a vocabulary of 152,000 they
would take 20 GB. Each chunk of rows is multiplied, reduced to a log-prob and an entropy, and freed;
the backward pass multiplies it again.

Shapes: N tokens, C of them in a chunk, H the hidden size, V the tokens of this rank, K targets of a
token. The weight may have more rows than V: padding with arbitrary values, which is never read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mindrl.config.teacher import Candidates

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
    hidden_NH: Tensor, weight_VH: Tensor, targets: Tensor, vocabulary: Vocabulary
) -> tuple[Tensor, Tensor]:
    """Return the log-prob of each target and the entropy of each distribution, in nats.

    The targets are [N], or [N, K] for several of one distribution; log-probs have their shape.
    A collective over the vocabulary's group. Differentiable in the hidden states and the weight,
    through both results; each rank's gradient of the hidden states is that of its own part of the
    vocabulary. If the weight has a `main_grad`, its gradient is added there, a part at a time, and
    `weight.grad` stays empty.

    Results are float32, or wider if the inputs are. Extra memory: less than two chunks of float32
    logits.
    """
    several = targets.dim() > 1
    logprobs_KN, entropy_N = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, targets if several else targets[:, None], vocabulary
    )
    return logprobs_KN.T if several else logprobs_KN[0], entropy_N


@torch.no_grad()
def most_probable(
    hidden_NH: Tensor,
    weight: Tensor,
    targets_N: Tensor,
    vocabulary: Vocabulary,
    candidates: Candidates,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-prob and entropy of each target, [N], and the tokens with the highest log-probs.

    Those are token ids and log-probs, [N, K], in falling order. A collective over the vocabulary's
    group.
    """
    weight_VH = _real(weight, vocabulary)
    hidden_NH = hidden_NH.to(weight_VH.dtype)
    found_3N = torch.empty(3, len(targets_N), dtype=_wide(hidden_NH), device=hidden_NH.device)
    logits_NK = found_3N.new_empty(len(targets_N), candidates.number)
    ids_NK = torch.empty_like(logits_NK, dtype=torch.int64)
    for rows in _slices(len(targets_N), vocabulary.chunk_tokens):
        logits_CV = _logits(hidden_NH[rows], weight_VH, vocabulary)
        logits_NK[rows], ids_NK[rows] = _highest(logits_CV, vocabulary, candidates)
        found_3N[:, rows] = _reduced(logits_CV, targets_N[rows, None], vocabulary)
        del logits_CV
    logprobs_N, entropy_N, log_total_N = found_3N
    return logprobs_N, entropy_N, ids_NK, logits_NK - log_total_N[:, None]


def _highest(
    logits_CV: Tensor, vocabulary: Vocabulary, candidates: Candidates
) -> tuple[Tensor, Tensor]:
    """Return the highest logits over all ranks and their token ids, [C, K]."""
    count, below = candidates
    allowed_CV = logits_CV[:, : max(0, below - vocabulary.first_token)]
    own_CK, ids_CK = allowed_CV.topk(min(count, allowed_CV.size(1)), dim=-1)
    missing = count - own_CK.size(1)
    # A small part of a vocabulary has fewer tokens; all ranks send the same number.
    own_CK = functional.pad(own_CK, (0, missing), value=-torch.inf).contiguous()
    ids_CK = functional.pad(ids_CK + vocabulary.first_token, (0, missing)).contiguous()
    ranks = vocabulary.group.size()
    parts = [[torch.empty_like(each) for _ in range(ranks)] for each in (own_CK, ids_CK)]
    dist.all_gather(parts[0], own_CK, group=vocabulary.group)
    dist.all_gather(parts[1], ids_CK, group=vocabulary.group)
    highest_CK, places_CK = torch.cat(parts[0], dim=1).topk(count, dim=-1)
    return highest_CK, torch.cat(parts[1], dim=1).gather(1, places_CK)


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight: Tensor, targets_NK: Tensor, vocabulary: Vocabulary
    ) -> tuple[Tensor, Tensor]:
        hidden_NH, weight_VH = hidden_NH.to(weight.dtype), _real(weight, vocabulary)
        shape = (targets_NK.size(1) + 2, len(targets_NK))
        found_XN = torch.empty(shape, dtype=_wide(hidden_NH), device=hidden_NH.device)
        for rows in _slices(len(targets_NK), vocabulary.chunk_tokens):
            # Do not bind the logits to a name: it would keep them alive while the next ones are
            # made.
            found_XN[:, rows] = _reduced(
                _logits(hidden_NH[rows], weight_VH, vocabulary), targets_NK[rows], vocabulary
            )
        *_, entropy_N, log_total_N = found_XN
        # Not a saved tensor: the gradient is written to an attribute of this very object.
        ctx.weight, ctx.vocabulary = weight, vocabulary
        ctx.save_for_backward(hidden_NH, targets_NK, entropy_N, log_total_N)
        return found_XN[:-2].clone(), entropy_N.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprob_KN: Tensor, grad_entropy_N: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None]:
        hidden_NH, targets_NK, entropy_N, log_total_N = ctx.saved_tensors
        weight_VH = _real(ctx.weight, ctx.vocabulary)
        grad_NH = torch.empty_like(hidden_NH)
        # Megatron's own buffer, or one of the weight's shape; none for a frozen weight.
        buffer: Tensor | None = getattr(ctx.weight, "main_grad", None)
        total = buffer
        if buffer is None and ctx.needs_input_grad[1]:
            total = torch.zeros_like(ctx.weight, dtype=_wide(weight_VH))
        columns_5N = (targets_NK, entropy_N, log_total_N, grad_logprob_KN.T, grad_entropy_N)
        for rows in _slices(len(targets_NK), ctx.vocabulary.chunk_tokens):
            hidden_CH = hidden_NH[rows]
            grad_CV = _logit_gradient(
                _logits(hidden_CH, weight_VH, ctx.vocabulary),
                [column_N[rows] for column_N in columns_5N],
                ctx.vocabulary,
            ).to(weight_VH.dtype)
            grad_NH[rows] = grad_CV @ weight_VH
            if total is not None:
                _add_product(_real(total, ctx.vocabulary), grad_CV, hidden_CH, ctx.vocabulary)
            del grad_CV
        returned = total.to(weight_VH.dtype) if total is not None and buffer is None else None
        return grad_NH, returned, None, None


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


def _reduced(logits_CV: Tensor, targets_CK: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return log-probs, entropy and log of summed exponentials, [K + 2, C]. Overwrites logits."""
    exact_CK = _by_one_operator(logits_CV, targets_CK) if vocabulary.one_operator else None
    highest_C = logits_CV.amax(dim=-1)
    dist.all_reduce(highest_C, op=dist.ReduceOp.MAX, group=vocabulary.group)
    logits_CV -= highest_C[:, None]
    local_CK, ours_CK = _own(targets_CK, logits_CV.size(1), vocabulary)
    chosen_CK = logits_CV.gather(1, local_CK).masked_fill(~ours_CK, 0.0)
    total_C, weighted_C = torch.empty_like(highest_C), torch.empty_like(highest_C)
    for rows in _slices(len(logits_CV), -(-len(logits_CV) // _BLOCKS)):
        weights_RV = logits_CV[rows].exp()
        total_C[rows] = weights_RV.sum(-1)
        weights_RV *= logits_CV[rows]
        weighted_C[rows] = weights_RV.sum(-1)
    # One all-reduce for all sums over the vocabulary.
    sums_XC = torch.stack((total_C, weighted_C, *chosen_CK.T))
    dist.all_reduce(sums_XC, group=vocabulary.group)
    total_C, weighted_C, *_ = sums_XC
    log_total_C = total_C.log()
    entropy_C = log_total_C - weighted_C / total_C
    logprobs_KC = sums_XC[2:] - log_total_C if exact_CK is None else exact_CK.T
    return torch.stack((*logprobs_KC, entropy_C, highest_C + log_total_C))


def _by_one_operator(logits_CV: Tensor, targets_CK: Tensor) -> Tensor:
    found_CK = torch.empty_like(targets_CK, dtype=logits_CV.dtype)
    for rows in _slices(len(logits_CV), -(-len(logits_CV) // _BLOCKS)):
        found_RV = logits_CV[rows].log_softmax(dim=-1)
        found_CK[rows] = found_RV.gather(1, targets_CK[rows])
    return found_CK


def _logit_gradient(
    logits_CV: Tensor, columns_5C: Sequence[Tensor], vocabulary: Vocabulary
) -> Tensor:
    """Turn logits, in place, into the gradient with respect to the logits before the temperature.

    d logprob / d logit = onehot - p; d entropy / d logit = -p (log p + entropy).
    """
    targets_CK, entropy_C, log_total_C, grad_logprob_CK, grad_entropy_C = columns_5C
    grad_logprob_C = grad_logprob_CK.sum(dim=1)
    for rows in _slices(len(logits_CV), -(-len(logits_CV) // _BLOCKS)):
        factor_RV = logits_CV[rows].sub_(log_total_C[rows, None])
        probs_RV = factor_RV.exp()
        factor_RV += entropy_C[rows, None]
        factor_RV *= grad_entropy_C[rows, None]
        factor_RV += grad_logprob_C[rows, None]
        factor_RV *= probs_RV.neg_()
    local_CK, ours_CK = _own(targets_CK, logits_CV.size(1), vocabulary)
    logits_CV.scatter_add_(1, local_CK, grad_logprob_CK * ours_CK)
    if vocabulary.temperature != 1.0:
        logits_CV /= vocabulary.temperature
    return logits_CV


def _own(targets_CK: Tensor, tokens: int, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Return targets relative to this rank's first token, and a mask of those in its part."""
    local_CK = targets_CK - vocabulary.first_token
    return local_CK.clamp(0, tokens - 1), (local_CK >= 0) & (local_CK < tokens)


def _add_product(
    sum_VH: Tensor, grad_CV: Tensor, hidden_CH: Tensor, vocabulary: Vocabulary
) -> None:
    """Add `grad_CV.T @ hidden_CH` to `sum_VH`, a block of the vocabulary at a time."""
    parts = _BLOCKS * -(-hidden_CH.size(1) // vocabulary.chunk_tokens)
    pairs = zip(sum_VH.tensor_split(parts), grad_CV.tensor_split(parts, dim=1), strict=True)
    for part_PH, grad_CP in pairs:
        part_PH.add_(grad_CP.T @ hidden_CH)
