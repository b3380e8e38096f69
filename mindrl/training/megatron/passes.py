"""Forward and backward passes of packs through Megatron's schedules."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from mindrl.observability.progress import tick
from mindrl.platform.attention import Packing
from mindrl.training.engine import Batch
from mindrl.training.pack_routes import PackRoutes
from mindrl.training.packs import Attending, Pack


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]
    """Metadata of a pack for Megatron and our attention; built once, read in every layer."""

    packing: Packing | None = None
    gathered: Tensor | None = None
    """See `Pack.gathered`."""
    attending: Attending | None = None
    """See `Pack.attending`."""
    routes: PackRoutes | None = None
    """See `Pack.routes`."""
    positions: Tensor | None = None
    """Position of each token where Megatron looks for its angles; None counts from 0 in each
    slot."""
    balance_weight: float = 1.0
    """Weight of the pack's expert balance loss in Megatron's mean over passes."""


PackLoss = Callable[[Pack[Batch], Tensor], tuple[Tensor, Any]]
"""Maps a pack and its last hidden states [1, S, H] to a 0-dim loss and a result to return."""


def forward_backward(
    chunks: Sequence[nn.Module],
    packs: Sequence[Pack[Batch]],
    loss: PackLoss[Batch],
    *,
    forward_only: bool,
) -> list[Any]:
    """Run forward, and backward unless `forward_only`. A collective over the replica's ranks.

    All ranks of a replica pass the same packs. Returns the results of `loss` in the order of the
    packs on the last pipeline stage, and an empty list on other stages.
    """
    of_real = len(packs) / sum(not pack.is_idle for pack in packs)

    def forward_step(waiting: Iterator[Pack[Batch]], network: nn.Module) -> tuple[Tensor, Any]:
        tick()
        pack = next(waiting)
        sequences = packed_sequences(pack)
        sequences.balance_weight = 0.0 if pack.is_idle else of_real
        output: Tensor = network(
            pack.tokens_1S, pack.positions_1S, None, packed_seq_params=sequences
        )
        return output, partial(loss, pack)

    waiting = [iter(packs) for _ in chunks]
    with torch.set_grad_enabled(not forward_only):
        results: list[Any] = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=waiting if len(chunks) > 1 else waiting[0],
            model=list(chunks),
            num_microbatches=len(packs),
            # Stages send each other the real length of each pack.
            seq_length=packs[0].tokens_1S.size(1),
            micro_batch_size=1,
            forward_only=forward_only,
        )
    return results


def packed_sequences(pack: Pack[Batch]) -> PackedSequences:
    """Return a pack's metadata for Megatron."""
    # On the host: Megatron reads the bounds as Python numbers twice a layer, which would wait for a
    # device.
    starts, longest, positions = pack.packing.starts, pack.packing.longest, _positions(pack)
    if positions is not None:
        # Megatron reads the bounds only for angles: it gets the pack as one sequence.
        longest = starts[-1]
        starts = (0, longest)
    bounds = torch.tensor(starts, dtype=torch.int32)
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        packing=pack.packing,
        gathered=pack.gathered,
        attending=pack.attending,
        routes=pack.routes,
        positions=positions,
    )


def _positions(pack: Pack[Batch]) -> Tensor | None:
    """Return the positions of a pack with shared prompts in the order of a single sequence.

    Context-parallel rank r reads the sequence's r-th pieces from the start and from the end.
    """
    if pack.attending.shared is None:
        return None
    positions_P = pack.attending.shared.positions_P
    if pack.gathered is None:
        return positions_P
    ranks = len(pack.gathered) // pack.positions_1S.size(1)
    first, last = positions_P[pack.gathered].view(ranks, 2, -1).unbind(1)
    return torch.cat([first, last.flip(0)]).flatten()
