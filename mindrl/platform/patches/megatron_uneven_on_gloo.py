"""Megatron-core's gather and reduce-scatter of uneven parts, for gloo.

Upstream: megatron-core 0.13 to 0.16.1 (checked with 0.16.1) on torch 2.13. Reason: experts that are
split between ranks receive unequal numbers of tokens, and Megatron passes parts of unequal size to
`all_gather` and `reduce_scatter`, which NCCL and HCCL accept and gloo refuses. This patch uses
`all_to_all_single` for such parts. No longer needed when gloo gathers tensors of different sizes:
tests/unit/platform tries it.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _exchange(
    parts: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup
) -> Tensor:
    received = parts.new_empty((sum(receive), *parts.shape[1:]))
    dist.all_to_all_single(received, parts.contiguous(), receive, send, group=group)
    return received


def gather(part: Tensor, group: dist.ProcessGroup, sizes: list[int]) -> Tensor:
    """Return the concatenated parts of all ranks; `sizes` are their lengths."""
    ranks = group.size()
    return _exchange(torch.cat([part] * ranks), [len(part)] * ranks, sizes, group)


def reduce_scatter(parts: Tensor, group: dist.ProcessGroup, sizes: list[int]) -> Tensor:
    """Return the sum over all ranks of this rank's part; `sizes` are the lengths of the parts."""
    ranks, own = group.size(), sizes[group.rank()]
    received = _exchange(parts, sizes, [own] * ranks, group)
    return received.view(ranks, own, *parts.shape[1:]).sum(dim=0)


@cache
def install() -> None:
    """Replace Megatron's two functions for calls with sizes; repeated calls have no effect."""
    mappings: Any = import_module("megatron.core.tensor_parallel.mappings")
    mappings._gather_along_first_dim = _either(mappings._gather_along_first_dim, gather)
    mappings._reduce_scatter_along_first_dim = _either(
        mappings._reduce_scatter_along_first_dim, reduce_scatter
    )


def _either(even: Callable[..., Tensor], uneven: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def along_first_dim(
        tensor: Tensor, group: Any, sizes: list[int] | None = None, use_global_buffer: bool = False
    ) -> Tensor:
        if sizes is None or group.size() == 1:
            return even(tensor, group, None, use_global_buffer)
        return uneven(tensor, group, sizes)

    return along_first_dim
