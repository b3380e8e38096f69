"""The product of grouped experts is what its definition says, and so are its gradients.

Shapes: T rows in the order of their experts, E experts, I input size, O output size.
"""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from mindrl.platform.patches import megatron_grouped_gemm
from mindrl.platform.patches.megatron_grouped_gemm import multiply

COUNTS = {"all busy": (2, 3, 1, 7), "two idle": (0, 9, 0, 4), "one busy": (0, 0, 0, 9)}


def defined(rows_TI: Tensor, experts_EIO: Tensor, counts: tuple[int, ...]) -> Tensor:
    parts = zip(rows_TI.split(counts), experts_EIO, strict=True)
    return torch.cat([part @ expert for part, expert in parts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(32, 48), (7, 5)], ids=["aligned", "odd"])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
def test_product_and_both_gradients_are_those_of_one_expert_after_the_other(
    counts: tuple[int, ...], sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    rows_TI = torch.randn(sum(counts), sizes[0], dtype=dtype, requires_grad=True)
    experts_EIO = torch.randn(4, *sizes, dtype=dtype, requires_grad=True)
    # A gradient may come in any layout of memory.
    gradient_TO = torch.randn(sizes[1], sum(counts), dtype=dtype).T
    found, expected = (
        (product, *torch.autograd.grad(product, (rows_TI, experts_EIO), gradient_TO))
        for product in (
            multiply(rows_TI, experts_EIO, torch.tensor(counts), trans_b=False),
            defined(rows_TI, experts_EIO, counts),
        )
    )
    # Sums of up to 48 terms of size 1, in float32 and rounded to the type at their end.
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2**-8 * 32}[dtype]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


def test_an_expert_without_a_token_has_no_gradient_even_where_the_kernel_leaves_it_unwritten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = torch.tensor(COUNTS["two idle"])
    plain = megatron_grouped_gemm.grouped_mm

    def leaves_idle_ones_out(first: Tensor, second: Tensor, **options: Any) -> Tensor:
        product: Tensor = plain(first, second, **options)
        if second.dim() == 2:
            product[counts == 0] = torch.nan
        return product

    monkeypatch.setattr(megatron_grouped_gemm, "grouped_mm", leaves_idle_ones_out)
    experts_EIO = torch.randn(4, 32, 48, requires_grad=True)
    multiply(torch.ones(13, 32), experts_EIO, counts).sum().backward()
    # Each element is the sum over the rows of its expert, all ones.
    assert experts_EIO.grad is not None
    assert [expert.unique().tolist() for expert in experts_EIO.grad] == [[0], [9], [0], [4]]


def test_without_megatrons_class_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0.17 on Megatron has neither the class nor the module that the patch replaces."""
    moe = "megatron.core.transformer.moe"
    monkeypatch.setitem(sys.modules, f"{moe}.experts", ModuleType("experts"))
    monkeypatch.setitem(sys.modules, f"{moe}.grouped_gemm_util", None)
    assert megatron_grouped_gemm.grouped_experts() == ()
    megatron_grouped_gemm.install()
