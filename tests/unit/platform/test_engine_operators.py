"""Matrix products that do not depend on a batch. The engine's attention is in test_patches.py.

Shapes: M rows, K inputs, N outputs.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mindrl.platform.engine_operators import use_engine_products

M, K, N = 24, 700, 40
ROWS = (1, 2, 3, 4, 5, 23)


@pytest.fixture
def products() -> Iterator[None]:
    """Replace torch's products for one test."""
    library = use_engine_products.__wrapped__()
    yield
    library._destroy()


def example() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    rows_MK, weight_NK = torch.randn(M, K, generator=draw), torch.randn(N, K, generator=draw)
    return rows_MK, weight_NK, torch.randn(N, generator=draw)


def dependent_rows(bias_N: Tensor | None) -> list[int]:
    """Return the numbers of rows that change the product of the first row."""
    rows_MK, weight_NK, _ = example()
    whole = functional.linear(rows_MK, weight_NK, bias_N)[0]
    parts = {rows: functional.linear(rows_MK[:rows], weight_NK, bias_N)[0] for rows in ROWS}
    return [rows for rows, part in parts.items() if not torch.equal(part, whole)]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.usefixtures("products")
def test_a_row_has_the_same_product_in_every_batch(has_bias: bool) -> None:
    assert dependent_rows(example()[2] if has_bias else None) == []


@pytest.mark.usefixtures("products")
def test_matrices_side_by_side_have_the_products_of_each() -> None:
    rows_MK, weight_NK, _ = example()
    whole = functional.linear(rows_MK, weight_NK)
    parts = [functional.linear(rows_MK[None], part)[0] for part in weight_NK.split((9, N - 9))]
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_products_and_gradients_are_torchs_to_rounding_and_come_back_after_it() -> None:
    rows_MK, weight_NK, bias_N = (each.requires_grad_() for each in example())
    usual = functional.linear(rows_MK, weight_NK, bias_N)
    expected = torch.autograd.grad(usual.square().sum(), (rows_MK, weight_NK, bias_N))
    library = use_engine_products.__wrapped__()
    try:
        found = functional.linear(rows_MK, weight_NK, bias_N)
        gradients = torch.autograd.grad(found.square().sum(), (rows_MK, weight_NK, bias_N))
        doubles = torch.ones(2, 3).double() @ torch.ones(3, 2).double()
    finally:
        library._destroy()
    assert not torch.equal(found, usual), "the products were not replaced"
    # Sums of 700 products of float32 in another order.
    torch.testing.assert_close(found, usual, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=1e-2)
    assert doubles.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert torch.equal(functional.linear(rows_MK, weight_NK, bias_N), usual)


def test_a_composite_operator_replaced_for_one_device_has_no_gradient() -> None:
    """Why an engine that replaces these must not share the process of a trainer."""
    rows_MK, weight_NK, _ = example()
    rows_MK.requires_grad_()
    library = torch.library.Library("aten", "IMPL")
    product = torch.library.get_kernel("aten::mm", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    replaced = partial(product.call_boxed, keys)
    library.impl("matmul", replaced, "CPU", allow_override=True)
    try:
        with pytest.raises(NotImplementedError, match="matmul_backward"):
            (rows_MK @ weight_NK.T).sum().backward()
    finally:
        library._destroy()
