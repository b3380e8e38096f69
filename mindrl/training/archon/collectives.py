"""Differentiable collectives: the backward pass of each is its counterpart.

Shapes: S tokens of this rank, R ranks of the group, N heads, D width of a head, H hidden size.
Hidden states are [1, S, H].
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

Collective = Callable[[Tensor, dist.ProcessGroup], Tensor]


def _collective(forward: Collective, backward: Collective) -> Collective:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Tensor, group: dist.ProcessGroup) -> Tensor:
            ctx.group = group
            return forward(given, group)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return backward(gradient, ctx.group), None

    return Function.apply


def _same(given: Tensor, _: dist.ProcessGroup) -> Tensor:
    return given.view_as(given)


def _sum(given: Tensor, group: dist.ProcessGroup) -> Tensor:
    given = given.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(given, group=group)
    return given


def _gather(given_1SH: Tensor, group: dist.ProcessGroup) -> Tensor:
    _, S, H = given_1SH.shape
    whole = given_1SH.new_empty(group.size() * S, H)
    dist.all_gather_into_tensor(whole, given_1SH[0].contiguous(), group=group)
    return whole[None]


def _scatter(given_1SH: Tensor, group: dist.ProcessGroup) -> Tensor:
    _, S, H = given_1SH.shape
    part = given_1SH.new_empty(S // group.size(), H)
    dist.reduce_scatter_tensor(part, given_1SH[0].contiguous(), group=group)
    return part[None]


def _part(given_1SH: Tensor, group: dist.ProcessGroup) -> Tensor:
    return given_1SH.chunk(group.size(), dim=1)[group.rank()].contiguous()


copied = _collective(_same, _sum)
"""Identity on a replicated tensor that ranks then use differently; gradients are summed."""
summed = _collective(_sum, _same)
"""Sum over the ranks, which all of them then use alike; gradients pass unchanged."""
gathered = _collective(_gather, _scatter)
"""Tokens of all ranks, which ranks then use differently; gradients are reduce-scattered."""
scattered = _collective(_scatter, _gather)
"""Sum over the ranks, of which each keeps its own tokens; gradients are gathered."""
gathered_by_all = _collective(_gather, _part)
"""Tokens of all ranks, which all of them then use alike; each keeps the gradient of its own."""
own_part = _collective(_part, _gather)
"""This rank's part of replicated tokens; gradients are gathered."""


def tokens_for_heads(heads_SND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Trade heads for the tokens of all ranks, rank by rank; returns [R * S, N / R, D].

    Key or value heads are repeated if there are fewer than ranks.
    """
    R = group.size()
    if heads_SND.size(1) < R:
        heads_SND = heads_SND.repeat_interleave(R // heads_SND.size(1), dim=1)
    S, N, D = heads_SND.shape
    return exchanged(heads_SND.view(S, R, N // R, D).transpose(0, 1), group).flatten(0, 1)


def heads_for_tokens(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Trade the other ranks' tokens for all heads: [R * S, N / R, D] to [S, N, D]."""
    received = exchanged(tokens.view(group.size(), -1, *tokens.shape[1:]), group)
    return received.transpose(0, 1).flatten(1, 2)


def exchanged(
    rows: Tensor,
    group: dist.ProcessGroup,
    received: list[int] | None = None,
    sent: list[int] | None = None,
) -> Tensor:
    """Send each rank its rows and return the rows received, by source rank. A collective.

    Args:
        rows: Rows to send, those for rank 0 first.
        group: Ranks of the collective.
        received: Rows from each rank; None for equally many.
        sent: Rows to each rank; None for equally many.
    """
    arriving = all_to_all_single_autograd(rows.contiguous(), received, sent, group)
    return torch.ops._c10d_functional.wait_tensor(arriving)  # type: ignore[no-any-return]
