"""On a CUDA device grouped experts give what one expert after the other gives."""

import pytest
import torch

from mindrl.platform.patches.megatron_grouped_gemm import multiply

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("counts", [(200, 1, 57, 640), (0, 300, 0, 41)], ids=["busy", "two idle"])
def test_product_and_both_gradients_in_bfloat16(counts: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    rows = torch.randn(sum(counts), 256, **options).requires_grad_()
    experts = torch.randn(4, 256, 192, **options).requires_grad_()
    gradient = torch.randn(sum(counts), 192, **options)
    product = multiply(rows, experts, torch.tensor(counts))
    found = [product, *torch.autograd.grad(product, (rows, experts), gradient)]
    parts = zip(rows.float().split(counts), experts.float(), strict=True)
    exact = torch.cat([part @ expert for part, expert in parts])
    expected = [exact, *torch.autograd.grad(exact, (rows, experts), gradient.float())]
    for ours, theirs in zip(found, expected, strict=True):
        # Sums of up to 640 terms of size 1 have a size of 25 to 100, and 8 bits: 2^-8 of it.
        torch.testing.assert_close(ours.float(), theirs.float(), atol=0.5, rtol=2**-7)
