"""Micro-batches as they enter the network: sequences one behind the other.

Megatron calls the format thd. Every sequence has a slot; attention and positions never leave it.
Slots hold no padding but what the layout asks for, or, where padding is not removed, they are
all as long as the longest: the work of an ordinary padded batch.

Shapes: B sequences, T positions, S tokens of the pack on this rank, N of them predict a token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import lcm
from typing import Any, Generic, Self

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from mindrl.batch.sequences import Sequences
from mindrl.observability.progress import tick
from mindrl.platform.attention import Packing
from mindrl.training.engine import Batch


@dataclass(frozen=True, kw_only=True)
class PackRules:
    """What a layout asks of a pack."""

    removes_padding: bool
    """False gives every sequence as much room as the longest one."""
    cp: int
    """Context-parallel size: each rank has two of the 2 * cp equal pieces of every slot."""
    cp_rank: int
    tokens_multiple: int
    """Of the tokens of a pack over all context-parallel ranks."""
    device_type: str


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]
    """What Megatron and our attention need to know of a pack; made once, read in every layer."""

    packing: Packing | None = None
    gathered: Tensor | None = None
    """int64 [cp * S]: the place in the pack of each token, as the ranks join theirs."""
    natural: Tensor | None = None
    """int64 [cp * S]: the way back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack(Generic[Batch]):
    """One pass through the network, on the device."""

    source: Batch
    """The sequences, on the host."""
    tokens_1S: Tensor
    positions_1S: Tensor
    sequences: PackedSequences
    predicting_N: Tensor
    """Which of the S tokens come just before a response token."""
    targets_N: Tensor
    """That response token."""
    places_N: Tensor
    """Where it lies in the flattened [B, T] of `source`."""

    @classmethod
    def of(cls, source: Batch, rules: PackRules) -> Self:
        """Lay sequences out for this rank."""
        starts = _starts(source.lengths_B.tolist(), rules)
        place_S, position_S = _places(source, starts)
        gathered = _zigzag(starts, rules.cp)
        if gathered is not None:
            own_S = gathered.view(rules.cp, -1)[rules.cp_rank]
            place_S, position_S = place_S[own_S], position_S[own_S]
        tokens, inside_S = source.tokens_BT.flatten(), place_S >= 0
        # No response begins at position 0, so the token behind a row's last is never asked for.
        asked = torch.cat([source.response_mask_BT.flatten()[1:], torch.zeros(1, dtype=torch.bool)])
        predicts_S = inside_S & asked[place_S.clamp(min=0)]
        places_N = place_S[predicts_S] + 1
        device = rules.device_type
        return cls(
            source=source,
            tokens_1S=(tokens[place_S.clamp(min=0)] * inside_S)[None].to(device),
            positions_1S=position_S[None].to(device),
            sequences=_packed(starts, gathered, device),
            predicting_N=torch.nonzero(predicts_S)[:, 0].to(device),
            targets_N=tokens[places_N].to(device),
            places_N=places_N.to(device),
        )

    def spread(self, values_N: Tensor) -> Tensor:
        """Put a value of each predicted token to its place; returns [B, T], 0 elsewhere."""
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


def _places(source: Sequences, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return each token's place in the flattened [B, T], -1 for padding, and its position."""
    T, bounds = source.tokens_BT.size(1), torch.tensor(starts)
    sizes_B = bounds.diff()
    row_S = torch.repeat_interleave(torch.arange(len(sizes_B)), sizes_B)
    position_S = torch.arange(starts[-1]) - bounds[row_S]
    inside_S = position_S < source.lengths_B[row_S]
    return torch.where(inside_S, row_S * T + position_S, -1), position_S


def _zigzag(starts: Sequence[int], cp: int) -> Tensor | None:
    """Return the tokens of all context-parallel ranks, rank by rank; None without any.

    A rank has the r-th piece of every slot and the r-th from its end, as Megatron's rotary
    embedding takes it: of a causal attention all ranks then have the same work.
    """
    if cp == 1:
        return None
    pieces: list[list[Tensor]] = [[] for _ in range(cp)]
    for start, stop in pairwise(starts):
        parts = torch.arange(start, stop).chunk(2 * cp)
        for rank in range(cp):
            pieces[rank] += [parts[rank], parts[2 * cp - 1 - rank]]
    return torch.cat([part for rank in pieces for part in rank])


def _packed(starts: tuple[int, ...], gathered: Tensor | None, device: str) -> PackedSequences:
    # Megatron turns its bounds into numbers twice a layer: those on a device would be waited for.
    cumulative = torch.tensor(starts, dtype=torch.int32)
    longest = max(stop - start for start, stop in pairwise(starts))
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cumulative,
        cu_seqlens_kv=cumulative,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        packing=Packing(starts=starts, longest=longest, cumulative=cumulative.to(device)),
        gathered=None if gathered is None else gathered.to(device),
        natural=None if gathered is None else gathered.argsort().to(device),
    )


Loss = Callable[[Pack[Batch], Tensor], tuple[Tensor, Any]]
"""From a pack and its last hidden states [1, S, H] to a 0-dim loss and what is to be returned."""


def forward_backward(
    chunks: Sequence[nn.Module],
    packs: Sequence[Pack[Batch]],
    loss: Loss[Batch],
    *,
    forward_only: bool,
) -> list[Any]:
    """Run forward, and backward unless `forward_only`. A collective over the replica's ranks.

    The ranks of a replica have the same packs; the last pipeline stage calls `loss`, and gets what
    it gave for each pack, in their order. On all other stages the result is empty.
    """

    def forward_step(waiting: Iterator[Pack[Batch]], network: nn.Module) -> tuple[Tensor, Any]:
        tick()
        pack = next(waiting)
        output: Tensor = network(
            pack.tokens_1S, pack.positions_1S, None, packed_seq_params=pack.sequences
        )
        return output, partial(loss, pack)

    waiting = [iter(packs) for _ in chunks]
    with torch.set_grad_enabled(not forward_only):
        results: list[Any] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=waiting if len(chunks) > 1 else waiting[0],
            model=list(chunks),
            num_microbatches=len(packs),
            # Stages tell each other the real length of each pack.
            seq_length=packs[0].tokens_1S.size(1),
            micro_batch_size=1,
            forward_only=forward_only,
        )
    return results
