"""Runs packs through a network whose stages may lie on several ranks."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from mindrl.training.engine import Batch
from mindrl.training.megatron.packs import Pack

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

    The ranks of a replica have the same packs; the last pipeline stage calls `loss`.

    Returns:
        What `loss` gave for each pack, in their order; empty on all but the last stage.
    """

    def forward_step(waiting: Iterator[Pack[Batch]], network: nn.Module) -> tuple[Tensor, Any]:
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
