"""Flash attention on a CUDA device gives what torch's dense kernel gives, and the same bits twice.

Shapes: T packed tokens, N query heads, M key-value heads, D width of a head.
"""

from collections.abc import Iterator
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from mindrl.platform.attention import Packing, flash_attention, torch_attention
from mindrl.platform.determinism import deterministic_gradients, make_deterministic

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTHS = (257, 1, 1000, 64)


def inputs_on_device(n: int, m: int, d: int, value_width: int) -> tuple[list[Tensor], Packing]:
    torch.manual_seed(7)
    shapes = ((n, d), (m, d), (m, value_width))
    heads = [
        torch.randn(sum(LENGTHS), *shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for shape in shapes
    ]
    starts = tuple(accumulate(LENGTHS, initial=0))
    cumulative = torch.tensor(starts, dtype=torch.int32, device="cuda")
    return heads, Packing(starts=starts, longest=max(LENGTHS), cumulative=cumulative)


def output_and_gradients(kernel: object, heads: list[Tensor], packing: Packing) -> list[Tensor]:
    assert callable(kernel)
    output = kernel(*heads, packing, None)
    weights = torch.linspace(-1, 1, output.numel(), device="cuda").view_as(output)
    return [output, *torch.autograd.grad((output.float() * weights).sum(), heads)]


@pytest.mark.parametrize(
    ("n", "m", "d", "width"), [(28, 4, 128, 128), (16, 16, 192, 128), (8, 2, 64, 64)]
)
def test_flash_attention_equals_the_dense_kernel(n: int, m: int, d: int, width: int) -> None:
    heads, packing = inputs_on_device(n, m, d, width)
    exact = [tensor.detach().float().requires_grad_() for tensor in heads]
    wanted = output_and_gradients(torch_attention, exact, packing)
    found = output_and_gradients(flash_attention, heads, packing)
    for ours, theirs in zip(found, wanted, strict=True):
        # bfloat16 keeps 8 bits: 2**-8 of the largest entry per rounding, a few of them.
        assert (ours.float() - theirs).abs().max() <= 0.02 * theirs.abs().max()


@pytest.fixture
def deterministic() -> Iterator[None]:
    make_deterministic()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_two_passes_agree_to_the_bit_under_deterministic_gradients() -> None:
    heads, packing = inputs_on_device(28, 4, 128, 128)
    with deterministic_gradients():
        first, second = (output_and_gradients(flash_attention, heads, packing) for _ in range(2))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))
