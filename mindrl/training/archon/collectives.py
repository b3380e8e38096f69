"""Differentiable collectives: the backward pass of each is its counterpart.

Shapes: S tokens of this rank, R ranks of the group, N heads, D width of a head, H hidden size.
Hidden states are [1, S, H].
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
"""Sum over the ranks, used alike by all of them; gradients pass unchanged."""
gathered = _collective(_gather, _scatter)
"""Tokens of all ranks, used differently by each rank; gradients are reduce-scattered."""
scattered = _collective(_scatter, _gather)
"""Sum over the ranks; each rank keeps its own tokens; gradients are gathered."""
gathered_by_all = _collective(_gather, _part)
"""Tokens of all ranks, used alike by all; each rank keeps the gradient of its own tokens."""
own_part = _collective(_part, _gather)
"""This rank's part of replicated tokens; gradients are gathered."""
