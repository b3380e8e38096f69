"""Attention of ranks that share the tokens of sequences: context parallelism.

A rank has the tokens of a zigzag (`packs.py`). Ranks that trade heads get all tokens of their group
for some heads (Ulysses, arXiv 2309.14509). The others pass keys and values on in a ring, and each
joins the attention of its queries to one rank's keys after the other (arXiv 2310.01889). Both
together are a ring of groups that trade heads.

Shapes: S tokens of this rank, R ranks of a group, N query heads, M key-value heads, D width of a
head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_to_all_single_autograd

from mindrl.layouts.layout import TrainLayout
from mindrl.platform.attention import Kernel
from mindrl.platform.block_attention import (
    Block,
    Joined,
    add_rows,
    block_attention,
    join,
    rows_of,
)
from mindrl.training.packs import Attending
from mindrl.training.shared_attention import shared_attention


@dataclass(frozen=True, kw_only=True)
class ContextGroups:
    """Groups of ranks that share the tokens of sequences."""

    heads: dist.ProcessGroup | None
    """Ranks that trade heads for tokens; None for a single rank."""
    ring: dist.ProcessGroup | None
    """Ranks that pass keys and values on; None for a single rank."""


def context_groups(layout: TrainLayout, whole: dist.ProcessGroup | None) -> ContextGroups | None:
    """Create the groups; None if each rank has whole sequences. A collective over all ranks.

    `whole` has the ranks that share sequences.
    """
    if layout.cp == 1:
        return None
    if layout.ring == 1:
        return ContextGroups(heads=whole, ring=None)
    if layout.ulysses_degree == 1:
        return ContextGroups(heads=None, ring=whole)
    each, size = layout.dense_order.groups({"cp"}), layout.ulysses_degree
    heads = [group[at : at + size] for group in each for at in range(0, layout.cp, size)]
    rings = [group[at::size] for group in each for at in range(size)]
    return ContextGroups(heads=own_group(heads), ring=own_group(rings))


def own_group(groups: list[list[int]]) -> dist.ProcessGroup:
    """Create these groups of ranks; return this rank's. A collective over all ranks."""
    own: dist.ProcessGroup
    own, _ = dist.new_subgroups_by_enumeration(groups)  # type: ignore[no-untyped-call]
    return own


def attend(
    kernel: Kernel,
    groups: ContextGroups | None,
    heads: Sequence[Tensor],
    tokens: Attending,
    scale: float | None = None,
) -> Tensor:
    """Return causal attention of query, key and value, [S, N, D] each, inside each sequence.

    A collective over the groups. A scale of None means 1 / sqrt(D).
    """
    query, key, value = heads
    if groups is None:
        return _attend_here(kernel, (query, key, value), tokens, scale)
    if groups.heads is not None:
        query, key, value = (
            _tokens_for_heads(each, groups.heads).index_select(0, tokens.natural)
            for each in (query, key, value)
        )
    if groups.ring is None:
        mixed = _attend_here(kernel, (query, key, value), tokens, scale)
    else:
        scale = query.size(-1) ** -0.5 if scale is None else scale
        ring = _Ring(tokens, groups.ring, scale)
        mixed = _Attention.apply(query, key, value, ring)  # type: ignore[no-untyped-call]
    if groups.heads is not None:
        mixed = _heads_for_tokens(mixed.index_select(0, tokens.gathered), groups.heads)
    return mixed


def _attend_here(
    kernel: Kernel,
    heads: tuple[Tensor, Tensor, Tensor],
    tokens: Attending,
    scale: float | None,
) -> Tensor:
    if tokens.shared is None:
        return kernel(*heads, tokens.packing, scale)
    return shared_attention(heads, tokens.packing, tokens.shared, scale)


class _Ring(NamedTuple):
    """A round of keys and values over the ranks of a ring.

    Of each sequence a rank has an early and a late piece: rank r the r-th from the start and the
    r-th from the end. So attention to its own keys is causal. All its queries see the early piece
    of an earlier rank; its late queries see both pieces of a later rank.
    """

    tokens: Attending
    group: dist.ProcessGroup
    scale: float

    def block(self, step: int) -> tuple[Tensor | None, Tensor | None, Block]:
        """Return a step's rows of queries and keys (None for all), and its attention block."""
        early, late, half = self.tokens.halves
        # The keys are of the rank that is `step` before this one in the ring.
        is_later = step > self.group.rank()
        rows = late if is_later else None
        seen = early if step > 0 and not is_later else None
        whole = self.tokens.packing
        block = Block(
            queries=whole if rows is None else half,
            keys=whole if seen is None else half,
            is_causal=step == 0,
            scale=self.scale,
        )
        return rows, seen, block


class _Attention(torch.autograd.Function):
    """Attention to the keys of all ranks of a ring, one rank's after the other."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: _Ring) -> Tensor:
        ctx.ring, passes = ring, block_attention(query.device.type)
        here, size = [key.contiguous(), value.contiguous()], ring.group.size()
        mixed, logsumexp = query.new_empty(0), query.new_empty(0)
        for step in range(size):
            coming = _Passing(here, ring.group) if step + 1 < size else None
            rows, seen, block = ring.block(step)
            heads = rows_of(query, rows), rows_of(here[0], seen), rows_of(here[1], seen)
            part = passes.forward(heads, block)
            if step == 0:
                mixed, logsumexp = part.mixed.float(), part.logsumexp
            else:
                join(mixed, logsumexp, rows, part)
            here = here if coming is None else coming.arrived()
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, mixed, logsumexp)
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, mixed, logsumexp = ctx.saved_tensors
        ring, passes = ctx.ring, block_attention(query.device.type)
        here, size = [key.contiguous(), value.contiguous()], ring.group.size()
        of_query = torch.zeros_like(query, dtype=torch.float32)
        # These gradients travel with their keys and values, and return after a whole round.
        of_here = [torch.zeros_like(each, dtype=torch.float32) for each in here]
        for step in range(size):
            coming = _Passing(here, ring.group) if step + 1 < size else None
            rows, seen, block = ring.block(step)
            heads = rows_of(query, rows), rows_of(here[0], seen), rows_of(here[1], seen)
            joined = Joined(rows_of(mixed, rows), rows_of(logsumexp, rows))
            parts = passes.backward(rows_of(gradient, rows), heads, joined, block)
            add_rows(of_query, rows, parts[0])
            add_rows(of_here[0], seen, parts[1])
            add_rows(of_here[1], seen, parts[2])
            of_here = _Passing(of_here, ring.group).arrived()
            here = here if coming is None else coming.arrived()
        return of_query.to(query.dtype), of_here[0].to(key.dtype), of_here[1].to(value.dtype), None


class _Passing:
    """Sends tensors to the next rank of a ring while those of the previous one arrive."""

    def __init__(self, tensors: Sequence[Tensor], ring: dist.ProcessGroup) -> None:
        here, count = ring.rank(), ring.size()
        after, before = (dist.get_global_rank(ring, (here + way) % count) for way in (1, count - 1))
        self.sent = tensors
        self.received = [torch.empty_like(each) for each in tensors]
        ops = [dist.P2POp(dist.isend, each, after, ring) for each in tensors]
        ops += [dist.P2POp(dist.irecv, each, before, ring) for each in self.received]
        self.works = dist.batch_isend_irecv(ops)

    def arrived(self) -> list[Tensor]:
        """Wait; return the received tensors."""
        for work in self.works:
            work.wait()
        return self.received


def _tokens_for_heads(heads_SND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Trade heads for the tokens of all ranks, rank by rank; returns [R * S, N / R, D].

    Key or value heads are repeated if there are fewer than ranks.
    """
    R = group.size()
    if heads_SND.size(1) < R:
        heads_SND = heads_SND.repeat_interleave(R // heads_SND.size(1), dim=1)
    S, N, D = heads_SND.shape
    return exchanged(heads_SND.view(S, R, N // R, D).transpose(0, 1), group).flatten(0, 1)


def _heads_for_tokens(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
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
