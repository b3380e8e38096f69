"""Megatron-core's grouped experts without the package `grouped_gemm`: multiplied by torch.

Upstream: megatron-core 0.12 to 0.16.1 (checked with 0.16.1), torch 2.13. Reason: `GroupedMLP`
multiplies by `grouped_gemm`, a package published as CUDA source only, and raises without it; torch
has the same product on CPU and CUDA. No longer needed when Megatron has a product without the
package: tests/unit/platform checks for it. Megatron 0.17 has no `GroupedMLP`.

Shapes: T rows sorted by expert, E experts, I input size, O output size.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import grouped_mm

_ALIGNMENT = 16
"""Torch's product requires that the rows of every matrix are a multiple of these bytes."""


class _Multiply(torch.autograd.Function):
    """Multiply the rows of each expert by its matrix, in one kernel."""

    @staticmethod
    def forward(ctx: Any, rows_TI: Tensor, experts_EIO: Tensor, counts_E: Tensor) -> Tensor:
        ends_E = counts_E.cumsum(0).to(rows_TI.device, torch.int32)
        ctx.save_for_backward(rows_TI, experts_EIO, ends_E)
        ctx.idle = (counts_E == 0).nonzero()[:, 0].tolist()
        return grouped_mm(rows_TI, experts_EIO, offs=ends_E)

    @staticmethod
    def backward(ctx: Any, gradient_TO: Tensor) -> tuple[Tensor, Tensor, None]:
        rows_TI, experts_EIO, ends_E = ctx.saved_tensors
        gradient_TO = gradient_TO.contiguous()
        of_rows_TI = grouped_mm(gradient_TO, experts_EIO.transpose(1, 2), offs=ends_E)
        of_experts_EIO = grouped_mm(rows_TI.T, gradient_TO, offs=ends_E)
        if ctx.idle:
            # Some CUDA kernels leave it unset: https://github.com/pytorch/pytorch/issues/172439
            of_experts_EIO[ctx.idle] = 0
        return of_rows_TI, of_experts_EIO, None


def multiply(
    rows_TI: Tensor, experts_EIO: Tensor, counts_E: Tensor, *, trans_b: bool = False
) -> Tensor:
    """Multiply the rows of each expert by its matrix; replaces `grouped_gemm.ops.gmm`.

    The counts are on the host; 0 is legal. Megatron never passes `trans_b`.
    """
    assert not trans_b
    sizes = experts_EIO.shape[1:]
    if all(size * experts_EIO.itemsize % _ALIGNMENT == 0 for size in sizes):
        return _Multiply.apply(rows_TI, experts_EIO, counts_E)  # type: ignore[no-any-return, no-untyped-call]
    parts = zip(torch.split(rows_TI, counts_E.tolist()), experts_EIO, strict=True)
    return torch.cat([part @ expert for part, expert in parts])


def grouped_experts() -> tuple[Any, ...]:
    """Return Megatron's classes that keep all experts of a rank in two matrices."""
    found = vars(import_module("megatron.core.transformer.moe.experts")).get("GroupedMLP")
    return () if found is None else (found,)


def install() -> None:
    """Install the product if Megatron found none."""
    if not grouped_experts():
        return
    util: Any = import_module("megatron.core.transformer.moe.grouped_gemm_util")
    if not util.grouped_gemm_is_available():
        util.grouped_gemm = util.ops = SimpleNamespace(gmm=multiply)
