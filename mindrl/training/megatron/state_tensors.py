"""The tensors that Megatron keeps for a model that it trains, by what they are for.

Everything large lives in few storages: one flat buffer of parameters and one of gradients per
bucket group, and the optimizer's own tensors.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor


def parameter_tensors(chunks: Sequence[DistributedDataParallel]) -> Iterator[Tensor]:
    """Yield the buffers that hold the training weights."""
    for buffer in _buffers(chunks):
        # Without the distributed optimizer the parameters keep their own storages.
        if buffer.param_data is not None:
            yield buffer.param_data
    for chunk in chunks:
        yield from (parameter.data for parameter in chunk.parameters())
        # In the table too, and none of Megatron's parameters.
        for name, buffer in chunk.module.named_buffers():
            if name.endswith("router.expert_bias"):
                yield buffer


def gradient_tensors(chunks: Sequence[DistributedDataParallel]) -> Iterator[Tensor]:
    """Yield the buffers that gradients accumulate in."""
    for buffer in _buffers(chunks):
        yield buffer.grad_data


def optimizer_tensors(
    optimizer: MegatronOptimizer, chunks: Sequence[DistributedDataParallel]
) -> Iterator[Tensor]:
    """Yield moments and float32 main weights, without what aliases the training weights."""
    owned = {tensor.untyped_storage()._cdata for tensor in parameter_tensors(chunks)}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.is_stub_optimizer:  # This rank has no parameters of that kind.
            continue
        for tensor in _all_tensors(part.optimizer):
            # Step counts are 0-dimensional and stay where they are.
            if tensor.dim() > 0 and tensor.untyped_storage()._cdata not in owned:
                yield tensor


def _all_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _buffers(chunks: Sequence[DistributedDataParallel]) -> Iterator[Any]:
    for chunk in chunks:
        yield from chunk.buffers
        yield from chunk.expert_parallel_buffers
