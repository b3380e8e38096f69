"""Context parallelism by exchange: all heads of some tokens for all tokens of some heads.

Shapes: S tokens of a rank, N heads, D head dimension, R ranks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def tokens_for_heads(heads_SND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give up heads, get the tokens of all ranks, rank by rank; returns [R * S, N / R, D].

    A collective over `group`; differentiable.
    """
    taken: Tensor = _Exchange.apply(heads_SND, group, True)  # type: ignore[no-untyped-call]
    return taken


def heads_for_tokens(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give up the tokens of others, get all heads; from [R * S, N / R, D] to [S, N, D]."""
    taken: Tensor = _Exchange.apply(tokens, group, False)  # type: ignore[no-untyped-call]
    return taken


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, group: dist.ProcessGroup, to_tokens: bool) -> Tensor:
        ctx.group, ctx.to_tokens = group, to_tokens
        return _exchanged(given, group, to_tokens=to_tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _exchanged(gradient, ctx.group, to_tokens=not ctx.to_tokens), None, None


def _exchanged(given: Tensor, group: dist.ProcessGroup, *, to_tokens: bool) -> Tensor:
    R, D = group.size(), given.size(-1)
    if to_tokens:
        S, N = given.size(0), given.size(1)
        sent = given.reshape(S, R, N // R, D).transpose(0, 1).contiguous()
    else:
        S, N = given.size(0) // R, given.size(1) * R
        sent = given.contiguous().view(R, S, N // R, D)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    if to_tokens:
        return received.view(R * S, N // R, D)
    return received.transpose(0, 1).reshape(S, N, D)
