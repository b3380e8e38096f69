"""Device memory of the training state: released and restored without moving a pointer.

Everything large that Megatron keeps lives in few storages: one flat buffer of parameters and
one of gradients per bucket group, and the optimizer's own tensors. Resizing a storage to zero
frees its memory while every view of it stays valid, on NPU, CUDA and CPU alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from torch import Tensor, UntypedStorage


class StorageOffloader:
    """Moves storages to the host and back; the host copies are allocated once and reused."""

    def __init__(self) -> None:
        self.host: dict[int, Tensor] = {}
        self.sizes: dict[int, int] = {}

    def offload(self, tensors: Iterable[Tensor], *, keep: bool) -> int:
        """Free the storages behind `tensors`; returns the bytes copied to the host.

        Args:
            tensors: Any views; each storage is treated once.
            keep: False drops the contents: `onload` then gives zeros.
        """
        copied = 0
        for storage in _storages(tensors):
            if storage.nbytes() == 0:
                continue
            key = storage._cdata
            self.sizes[key] = storage.nbytes()
            if keep:
                copied += self._copy_out(storage)
            storage.resize_(0)
        return copied

    def onload(self, tensors: Iterable[Tensor], *, kept: bool) -> int:
        """Allocate the storages again and fill them; returns the bytes copied to the device."""
        copied = 0
        for tensor in _one_per_storage(tensors):
            storage = tensor.untyped_storage()
            if storage.nbytes():
                continue
            storage.resize_(self.sizes[storage._cdata])
            if kept:
                storage.copy_(self.host[storage._cdata].untyped_storage())
                copied += storage.nbytes()
            else:
                torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage).zero_()
        return copied

    def _copy_out(self, storage: UntypedStorage) -> int:
        if storage._cdata not in self.host:
            pinned = storage.device.type != "cpu"
            self.host[storage._cdata] = torch.empty(
                storage.nbytes(), dtype=torch.uint8, pin_memory=pinned
            )
        self.host[storage._cdata].untyped_storage().copy_(storage)
        return storage.nbytes()


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


def _one_per_storage(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    seen: set[int] = set()
    for tensor in tensors:
        key = tensor.untyped_storage()._cdata
        if key not in seen:
            seen.add(key)
            yield tensor


def _storages(tensors: Iterable[Tensor]) -> Iterator[UntypedStorage]:
    for tensor in _one_per_storage(tensors):
        yield tensor.untyped_storage()
