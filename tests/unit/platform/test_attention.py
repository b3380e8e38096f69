"""Attention over packs: equal to a masked softmax, and no sequence sees another.

Shapes: T packed tokens, N query heads, M key-value heads, D width of a head.
"""

import sys
from collections.abc import Iterator
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mindrl.platform.attention import (
    Packing,
    attention_kernel,
    flash_attention,
    fused_attention,
    torch_attention,
)

GIVEN = (
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout,"
    " Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1.,"
    " float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647,"
    " int inner_precise=0, int[]? prefix=None, int[]? actual_seq_qlen=None,"
    " int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True,"
    ' bool sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None,'
    " int seed=0, int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)
"""As npu_native_functions_by_codegen.yaml of torch_npu 2.10.0.post4 says it."""

CASES = {
    "one head, unequal lengths": ((5, 1, 9), 1, 1, 8, 8),
    "6 query heads on 2 key-value heads": ((5, 1, 9), 6, 2, 8, 8),
    "6 query heads on 2, equal lengths": ((4, 4, 4), 6, 2, 8, 8),
    "values narrower than keys": ((5, 1, 9), 4, 4, 12, 8),
    "values narrower than keys, equal lengths": ((6, 6), 4, 4, 12, 8),
    "one sequence": ((7,), 4, 2, 8, 8),
}


def packing_of(lengths: tuple[int, ...], device: str = "cpu") -> Packing:
    starts = tuple(accumulate(lengths, initial=0))
    cumulative = torch.tensor(starts, dtype=torch.int32, device=device)
    return Packing(starts=starts, longest=max(lengths), cumulative=cumulative)


def heads(
    lengths: tuple[int, ...], n: int, m: int, d: int, value_width: int, dtype: torch.dtype
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = ((n, d), (m, d), (m, value_width))
    return [
        torch.randn(sum(lengths), *shape, generator=generator, dtype=dtype, requires_grad=True)
        for shape in shapes
    ]


def masked_softmax(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """The definition: all tokens with all, but those of other sequences and those behind."""
    T, N, D = query_TND.shape
    key, value = (t.repeat_interleave(N // t.size(1), dim=1) for t in (key_TMD, value_TMD))
    sequence_T = torch.repeat_interleave(torch.tensor(packing.lengths))
    seen_TT = (sequence_T[:, None] == sequence_T) & torch.ones(T, T, dtype=torch.bool).tril()
    scores_NTT = torch.einsum("snd,tnd->nst", query_TND, key)
    scores_NTT = scores_NTT * (D**-0.5 if scale is None else scale)
    weights_NTT = scores_NTT.masked_fill(~seen_TT, -torch.inf).softmax(-1)
    return torch.einsum("nst,tnd->snd", weights_NTT, value)


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(8)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return list(torch.autograd.grad((output * weights.to(output.dtype)).sum(), inputs))


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("lengths", "n", "m", "d", "width"), CASES.values(), ids=CASES)
def test_output_and_gradients_are_those_of_a_masked_softmax(
    lengths: tuple[int, ...], n: int, m: int, d: int, width: int, scale: float | None
) -> None:
    packing, inputs = packing_of(lengths), heads(lengths, n, m, d, width, torch.float64)
    wanted = masked_softmax(*inputs, packing, scale)
    found = torch_attention(*inputs, packing, scale)
    assert found.shape == (sum(lengths), n, width)
    # Sums of at most 12 terms of size 1 in float64: rounding is near 1e-15.
    assert torch.allclose(found, wanted, rtol=0, atol=1e-13)
    pairs = zip(gradients(found, inputs), gradients(wanted, inputs), strict=True)
    for ours, theirs in pairs:
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [(5, 1, 9), (5, 5, 5)])
def test_another_content_of_the_second_sequence_leaves_the_others_as_they_are_to_the_bit(
    lengths: tuple[int, ...],
) -> None:
    packing, inputs = packing_of(lengths), heads(lengths, 6, 2, 8, 8, torch.float32)
    second = slice(*packing.starts[1:3])
    changed = [tensor.detach().clone() for tensor in inputs]
    for tensor in changed:
        tensor[second] = 9 * torch.randn(tensor[second].shape)
    before, after = (torch_attention(*given, packing, None) for given in (inputs, changed))
    others = torch.ones(sum(lengths), dtype=torch.bool)
    others[second] = False
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[second], after[second])


def test_equally_long_sequences_in_one_call_give_the_bits_of_one_call_each() -> None:
    lengths = (40, 40, 40)
    inputs = heads(lengths, 6, 2, 8, 8, torch.float32)
    together = torch_attention(*inputs, packing_of(lengths), None)
    alone = [
        torch_attention(*(t[start : start + 40] for t in inputs), packing_of((40,)), None)
        for start in (0, 40, 80)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_the_last_token_of_a_pack_does_not_change_what_those_before_it_give() -> None:
    lengths = (3, 4)
    packing, inputs = packing_of(lengths), heads(lengths, 2, 2, 8, 8, torch.float32)
    changed = [torch.cat([tensor[:-1], 5 + tensor[-1:]]) for tensor in inputs]
    before, after = (torch_attention(*given, packing, None) for given in (inputs, changed))
    assert torch.equal(before[:-1], after[:-1])


def test_each_kind_of_device_has_its_kernel() -> None:
    assert attention_kernel("npu") is fused_attention
    assert attention_kernel("gpu") is flash_attention
    assert attention_kernel("cpu") is torch_attention


@pytest.mark.parametrize(("d", "width", "padded"), [(192, 128, 192), (20, 20, 24)])
def test_flash_attention_is_called_as_torch_defines_it_and_padding_is_cut_off_again(
    d: int, width: int, padded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Meta tensors: torch checks the call and works out the shapes; the kernel needs a device.
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    seen: list[tuple[int, ...]] = []

    def record(*given: Tensor, **options: object) -> Tensor:
        seen.extend(tuple(tensor.shape) for tensor in given[:3])
        assert options["scale"] == d**-0.5
        mixed: Tensor = real(*given, **options)
        return mixed

    real = varlen.varlen_attn
    monkeypatch.setattr(varlen, "varlen_attn", record)
    inputs = [t.to("meta", torch.bfloat16) for t in heads((3, 4), 4, 2, d, width, torch.float32)]
    output = flash_attention(*inputs, packing_of((3, 4), "meta"), None)
    assert seen == [(7, 4, padded), (7, 2, padded), (7, 2, padded)]
    assert output.shape == (7, 4, width)


def test_flash_attention_leaves_float32_to_torch() -> None:
    packing, inputs = packing_of((3, 4)), heads((3, 4), 4, 2, 8, 8, torch.float32)
    found = flash_attention(*inputs, packing, None)
    assert torch.equal(found, torch_attention(*inputs, packing, None))


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch_npu's operator as its documentation says, computed on the CPU from the definition.

    Torch itself checks names and kinds of the arguments against the published signature.
    """
    names = [argument.name for argument in torch._C.parse_schema(GIVEN).arguments]

    def attend(*positional: Any, **named: Any) -> tuple[Any, ...]:
        given = dict(zip(names, positional, strict=False)) | named
        query, key, value = given["query"], given["key"], given["value"]
        assert (given["head_num"], given["input_layout"]) == (query.size(1), "TND")
        assert key.shape == value.shape, "keys and values must have one shape"
        assert (given["sparse_mode"], given.get("keep_prob", 1.0)) == (3, 1.0)
        assert given["actual_seq_qlen"] == given["actual_seq_kvlen"] == [5, 6, 15]
        seen = torch.ones(2048, 2048, dtype=torch.bool).tril()
        assert torch.equal(given["atten_mask"], ~seen)
        mixed = masked_softmax(query, key, value, packing_of((5, 1, 9)), given["scale"])
        return mixed, *[torch.empty(0)] * 3, 0, 0, 0

    library = torch.library.Library("stand_in", "DEF")
    library.define(GIVEN)
    library.impl("npu_fusion_attention", attend, "CompositeImplicitAutograd")
    operator = torch.ops.stand_in.npu_fusion_attention
    monkeypatch.setitem(
        sys.modules,
        "torch_npu",
        SimpleNamespace(npu_fusion_attention=operator),
    )
    yield
    library._destroy()


@pytest.mark.usefixtures("torch_npu")
@pytest.mark.parametrize(
    "case", ["6 query heads on 2 key-value heads", "values narrower than keys"]
)
def test_fused_attention_is_called_as_torch_npu_documents_it_and_gives_the_masked_softmax(
    case: str,
) -> None:
    lengths, *sizes = CASES[case]
    packing, inputs = packing_of(lengths), heads(lengths, *sizes, torch.float64)
    found = fused_attention(*inputs, packing, None)
    wanted = masked_softmax(*inputs, packing, None)
    # The same computation but for columns of zeros, so a last digit may differ.
    assert torch.allclose(found, wanted, rtol=0, atol=1e-13)
    pairs = zip(gradients(found, inputs), gradients(wanted, inputs), strict=True)
    assert all(torch.allclose(ours, theirs, rtol=0, atol=1e-12) for ours, theirs in pairs)
