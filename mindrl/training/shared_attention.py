"""Attention of sequences that share a prompt: each sees the prompt and its own tokens.

A token attends to its slot, causally, and tokens after a shared prompt to all of the prompt too.
The two results are joined by the log-sum-exp of their scores, as in a ring (`context.py`).

Shapes: S tokens, N query heads, M key-value heads, D width of a head.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mindrl.platform.attention import Packing
from mindrl.platform.block_attention import Block, Joined, add_rows, block_attention, join
from mindrl.training.packs import SharedPrompts


class _Seen(NamedTuple):
    """What tokens attend to: their slots, and prompts in other slots."""

    slots: Packing
    prompts: SharedPrompts
    scale: float

    def blocks(self) -> tuple[Block, Block]:
        """Return the block of the slots and that of the prompts."""
        slots, prompts = self.slots, self.prompts
        return (
            Block(queries=slots, keys=slots, is_causal=True, scale=self.scale),
            Block(queries=prompts.queries, keys=prompts.keys, is_causal=False, scale=self.scale),
        )


def shared_attention(
    heads: tuple[Tensor, Tensor, Tensor],
    slots: Packing,
    prompts: SharedPrompts,
    scale: float | None = None,
) -> Tensor:
    """Return attention of query [S, N, D], key and value [S, M, D] inside slots and to prompts.

    A scale of None means 1 / sqrt(D).
    """
    scale = heads[0].size(-1) ** -0.5 if scale is None else scale
    mixed: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        *heads, _Seen(slots, prompts, scale)
    )
    return mixed


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, seen: _Seen) -> Tensor:
        passes, (inside, to_prompt) = block_attention(query.device.type), seen.blocks()
        rows, keys = seen.prompts.rows, seen.prompts.seen
        own = passes.forward((query, key, value), inside)
        other = passes.forward((query[rows], key[keys], value[keys]), to_prompt)
        mixed, logsumexp = own.mixed.float(), own.logsumexp
        join(mixed, logsumexp, rows, other)
        mixed = mixed.to(query.dtype)
        ctx.seen = seen
        ctx.save_for_backward(query, key, value, mixed, logsumexp)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, mixed, logsumexp = ctx.saved_tensors
        passes, (inside, to_prompt) = block_attention(query.device.type), ctx.seen.blocks()
        rows, keys = ctx.seen.prompts.rows, ctx.seen.prompts.seen
        own = passes.backward(gradient, (query, key, value), Joined(mixed, logsumexp), inside)
        other = passes.backward(
            gradient[rows],
            (query[rows], key[keys], value[keys]),
            Joined(mixed[rows], logsumexp[rows]),
            to_prompt,
        )
        sums = [part.float() for part in own]
        for whole, places, part in zip(sums, (rows, keys, keys), other, strict=True):
            add_rows(whole, places, part)
        of_query, of_key, of_value = (
            whole.to(given.dtype) for whole, given in zip(sums, (query, key, value), strict=True)
        )
        return of_query, of_key, of_value, None
