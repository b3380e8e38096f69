"""Attention of sequences that share their first tokens: each sees these and its own tokens.

A token attends to its slot, causally, and to all of each slot before it in its sequence: one depth
of the tree after the other. The results are joined by the log-sum-exp of their scores, as in a ring
(`context.py`).

Shapes: S tokens, N query heads, M key-value heads, D width of a head.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mindrl.platform.attention import Packing
from mindrl.platform.block_attention import Block, Joined, add_rows, block_attention, join
from mindrl.training.packs import SeenSlots, SharedPrompts


class _Seen(NamedTuple):
    """What tokens attend to: their slots, and slots before these."""

    slots: Packing
    prompts: SharedPrompts
    scale: float

    def inside(self) -> Block:
        """Return the block of each slot's own tokens."""
        return Block(queries=self.slots, keys=self.slots, is_causal=True, scale=self.scale)

    def before(self) -> list[tuple[SeenSlots, Block]]:
        """Return the block of each depth."""
        return [
            (each, Block(queries=each.queries, keys=each.keys, is_causal=False, scale=self.scale))
            for each in self.prompts.depths
        ]


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
        passes = block_attention(query.device.type)
        own = passes.forward((query, key, value), seen.inside())
        mixed, logsumexp = own.mixed.float(), own.logsumexp
        for slots, block in seen.before():
            rows, keys = slots.rows, slots.seen
            other = passes.forward((query[rows], key[keys], value[keys]), block)
            join(mixed, logsumexp, rows, other)
        mixed = mixed.to(query.dtype)
        ctx.seen = seen
        ctx.save_for_backward(query, key, value, mixed, logsumexp)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, mixed, logsumexp = ctx.saved_tensors
        passes, joined = block_attention(query.device.type), Joined(mixed, logsumexp)
        own = passes.backward(gradient, (query, key, value), joined, ctx.seen.inside())
        sums = [part.float() for part in own]
        for slots, block in ctx.seen.before():
            rows, keys = slots.rows, slots.seen
            other = passes.backward(
                gradient[rows],
                (query[rows], key[keys], value[keys]),
                Joined(mixed[rows], logsumexp[rows]),
                block,
            )
            # Each place once: additions in no fixed order would change bits from run to run.
            for whole, places, part in zip(sums, (rows, keys, keys), other, strict=True):
                add_rows(whole, places, part)
        of_query, of_key, of_value = (
            whole.to(given.dtype) for whole, given in zip(sums, (query, key, value), strict=True)
        )
        return of_query, of_key, of_value, None
