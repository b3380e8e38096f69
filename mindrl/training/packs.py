"""Micro-batches as the network reads them: packs of concatenated sequences.

Megatron calls the format thd. Every sequence has a slot; attention and positions stay inside it.
Slots are padded only as the layout requires, or, if padding is not removed, to the length of the
longest: the work of an ordinary padded batch. If prompts are shared, the common first tokens of
sequences have one slot; tokens after this slot attend to it, to slots before it, and to their own.

Shapes: B sequences, T positions, S tokens of the pack on this rank, N of them predict a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import lcm
from typing import Generic, Self

import torch
from torch import Tensor

from mindrl.batch.sequence_trees import Slot, slots_of
from mindrl.platform.attention import Packing
from mindrl.training.engine import Batch
from mindrl.training.pack_routes import PackRoutes
from mindrl.training.slots import branches, places, seen_prompts


@dataclass(frozen=True, kw_only=True)
class PackRules:
    """Requirements of a layout for its packs."""

    removes_padding: bool
    """False pads every slot to the longest sequence."""
    cp: int
    """Context-parallel size: each rank has two of the 2 * cp equal pieces of every slot."""
    cp_rank: int
    ring: int
    """Of the context-parallel ranks `cp / ring` neighbours trade heads in attention."""
    shares_prompts: bool = False
    """Whether sequences with the same prompt share its tokens."""
    tokens_multiple: int
    """Divides the tokens of a pack over all context-parallel ranks."""
    device_type: str


@dataclass(frozen=True, kw_only=True)
class SeenSlots:
    """Attention of tokens to one other slot each."""

    rows: Tensor
    """int64; places of the attending tokens in the pack, each once."""
    seen: Tensor
    """int64; places of the slots' tokens in the pack, each once."""
    queries: Packing
    """Bounds of the tokens after each slot, in `rows`."""
    keys: Packing
    """Bounds of each slot, in `seen`."""

    @classmethod
    def of(cls, found: Sequence[tuple[list[Tensor], list[Tensor]]], device: torch.device) -> Self:
        """Return the attention of tokens to slots before them: see `seen_prompts`."""
        after, prompts = ([torch.cat(parts) for parts in each] for each in zip(*found, strict=True))
        # Pairs of equal lengths are computed together.
        kinds = tuple((len(ours), len(seen)) for ours, seen in zip(after, prompts, strict=True))
        bounds = [accumulate(sizes, initial=0) for sizes in zip(*kinds, strict=True)]
        queries, keys = (
            replace(_packing(tuple(each), str(device)), kinds=kinds) for each in bounds
        )
        rows, seen = (torch.cat(each).to(device) for each in (after, prompts))
        return cls(rows=rows, seen=seen, queries=queries, keys=keys)


@dataclass(frozen=True, kw_only=True)
class SharedPrompts:
    """Attention of tokens to slots before theirs."""

    depths: tuple[SeenSlots, ...]
    """Attention to each sequence's first slot, to its second one, and so on."""
    positions_P: Tensor
    """int64; position of each token of the pack in its sequence, over all ranks."""

    @classmethod
    def of(cls, slots: Sequence[Slot], starts: Sequence[int], positions_P: Tensor) -> Self | None:
        """Return which slots the tokens of a pack see; None without shared slots."""
        found, device = seen_prompts(slots, starts), positions_P.device
        if not found:
            return None
        return cls(
            depths=tuple(SeenSlots.of(each, device) for each in found), positions_P=positions_P
        )


@dataclass(frozen=True, kw_only=True)
class Attending:
    """The tokens that a rank attends with, after ranks have traded heads for tokens."""

    packing: Packing
    """Bounds of the slots in these tokens."""
    shared: SharedPrompts | None
    """Slots that some tokens see besides their own."""
    gathered: Tensor
    """Place of each token among these tokens, in the order of the ranks' tokens."""
    natural: Tensor
    """Inverse of `gathered`."""

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor, Packing]:
        """Tokens of the first and of the second half of each sequence, and bounds of one half."""
        starts, device = self.packing.starts, self.natural.device
        parts = [torch.arange(start, stop).chunk(2) for start, stop in pairwise(starts)]
        first, second = (torch.cat(each).to(device) for each in zip(*parts, strict=True))
        return first, second, _packing(tuple(start // 2 for start in starts), str(device))

    @classmethod
    def of(
        cls,
        packing: Packing,
        gathered: Tensor | None,
        rules: PackRules,
        shared: SharedPrompts | None = None,
    ) -> Self:
        """Return the tokens of the ranks that trade heads with this one.

        `packing` and `gathered` are those of a `Pack`. Prompts are not shared in a ring.
        """
        if gathered is None:
            none = torch.empty(0, dtype=torch.int64)
            return cls(packing=packing, shared=shared, gathered=none, natural=none)
        assert shared is None or rules.ring == 1, "validated: no ring with shared prompts"
        degree = rules.cp // rules.ring
        first = rules.cp_rank // degree * degree
        natural = gathered.view(rules.cp, -1)[first : first + degree].flatten().argsort()
        if rules.ring > 1:
            starts = tuple(start // rules.ring for start in packing.starts)
            packing = _packing(starts, rules.device_type)
        return cls(
            packing=packing,
            shared=shared,
            gathered=natural.argsort().to(rules.device_type),
            natural=natural.to(rules.device_type),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack(Generic[Batch]):
    """Input of one forward pass, on the device."""

    source: Batch
    """Sequences, on the host."""
    tokens_1S: Tensor
    positions_1S: Tensor
    packing: Packing
    """Bounds of the slots, over all context-parallel ranks."""
    gathered: Tensor | None
    """int64 [cp * S]: position in the pack of each token, in the order of the ranks' tokens."""
    attending: Attending
    """The tokens that this rank attends with."""
    predicting_N: Tensor
    """Indices of the S tokens that directly precede a response token."""
    targets_N: Tensor
    """The response token that each of these tokens predicts."""
    places_N: Tensor
    """Index of each target in the flattened [B, T] of `source`."""
    numbers_N: Tensor
    """Index of each target among the response tokens of `source`, on the host."""
    place_S: Tensor
    """Index of each token in it, on the host; -1 for padding."""
    is_idle: bool = False
    """Whether the pack only equalises the number of passes over ranks and adds to no loss."""
    routes: PackRoutes | None = None
    """Experts of its tokens, to be kept or replayed; None without router replay."""

    @classmethod
    def of(cls, source: Batch, rules: PackRules) -> Self:
        """Lay out sequences for this rank."""
        T, slots = source.tokens_BT.size(1), slots_of(source, shares_prompts=rules.shares_prompts)
        starts = _starts([slot.length for slot in slots], rules)
        place_S, position_S = places(slots, starts, T)
        device, gathered = rules.device_type, _zigzag(starts, rules.cp)
        shared = SharedPrompts.of(slots, starts, position_S.to(device))
        if gathered is not None:
            own_S = gathered.view(rules.cp, -1)[rules.cp_rank]
            place_S, position_S = place_S[own_S], position_S[own_S]
        tokens, inside_S = source.tokens_BT.flatten(), place_S >= 0
        # No response begins at position 0, so the token after a row's last is never requested.
        asked = torch.cat([source.response_mask_BT.flatten()[1:], torch.zeros(1, dtype=torch.bool)])
        predicting_N = torch.nonzero(inside_S & asked[place_S.clamp(min=0)])[:, 0]
        # The last token of a shared prompt predicts the first one of each sequence.
        ends, firsts = branches(slots, source.response_mask_BT)
        branch, end_N = torch.nonzero(ends[:, None] == place_S, as_tuple=True)
        places_N = torch.cat([place_S[predicting_N] + 1, firsts[branch]])
        packing = _packing(starts, device)
        return cls(
            source=source,
            tokens_1S=(tokens[place_S.clamp(min=0)] * inside_S)[None].to(device),
            positions_1S=position_S[None].to(device),
            packing=packing,
            gathered=None if gathered is None else gathered.to(device),
            attending=Attending.of(packing, gathered, rules, shared),
            predicting_N=torch.cat([predicting_N, end_N]).to(device),
            targets_N=tokens[places_N].to(device),
            places_N=places_N.to(device),
            numbers_N=source.response_mask_BT.flatten().cumsum(0)[places_N] - 1,
            place_S=place_S,
        )

    def spread(self, values_N: Tensor) -> Tensor:
        """Scatter a value of each predicted token; returns [B, T], 0 elsewhere."""
        shape = self.source.tokens_BT.shape
        flat = torch.zeros(shape.numel(), dtype=values_N.dtype, device=values_N.device)
        return flat.scatter(0, self.places_N, values_N).view(shape)


def _starts(lengths: Sequence[int], rules: PackRules) -> tuple[int, ...]:
    """Return the bounds of the slots over all context-parallel ranks: B + 1 numbers."""
    multiple = 1 if rules.cp == 1 else 2 * rules.cp
    whole = lcm(multiple, rules.tokens_multiple)
    if rules.removes_padding:
        slots = [_up(length, multiple) for length in lengths]
        slots[-1] += -sum(slots) % whole
    else:
        slots = [_up(max(lengths), whole)] * len(lengths)
    return tuple(accumulate(slots, initial=0))


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _zigzag(starts: Sequence[int], cp: int) -> Tensor | None:
    """Return the pack position of every token, rank by rank; None without context parallelism.

    Rank r has the r-th piece of every slot and the r-th from its end, as Megatron's rotary
    embedding expects. Causal attention then costs the same on every rank.
    """
    if cp == 1:
        return None
    pieces: list[list[Tensor]] = [[] for _ in range(cp)]
    for start, stop in pairwise(starts):
        parts = torch.arange(start, stop).chunk(2 * cp)
        for rank in range(cp):
            pieces[rank] += [parts[rank], parts[2 * cp - 1 - rank]]
    return torch.cat([part for rank in pieces for part in rank])


def _packing(starts: tuple[int, ...], device: str) -> Packing:
    longest = max(stop - start for start, stop in pairwise(starts))
    cumulative = torch.tensor(starts, dtype=torch.int32)
    return Packing(starts=starts, longest=longest, cumulative=cumulative.to(device))
