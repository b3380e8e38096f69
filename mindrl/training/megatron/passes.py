"""Packs as Megatron runs them through a network: forward, and backward."""

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
from mindrl.training.packs import Pack


@dataclass
class PackedSequences(PackedSeqParams):  # type: ignore[misc]
    """What Megatron and our attention need to know of a pack; made once, read in every layer."""

    packing: Packing | None = None
    gathered: Tensor | None = None
    """As that of a pack."""
    natural: Tensor | None = None
    """As that of a pack."""


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
            pack.tokens_1S, pack.positions_1S, None, packed_seq_params=packed_sequences(pack)
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


def packed_sequences(pack: Pack[Batch]) -> PackedSequences:
    """Say what Megatron wants to know of a pack."""
    # Megatron turns its bounds into numbers twice a layer: those on a device would be waited for.
    bounds = torch.tensor(pack.packing.starts, dtype=torch.int32)
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=bounds,
        cu_seqlens_kv=bounds,
        max_seqlen_q=pack.packing.longest,
        max_seqlen_kv=pack.packing.longest,
        packing=pack.packing,
        gathered=pack.gathered,
        natural=pack.natural,
    )
