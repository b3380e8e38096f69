"""Causal attention inside each sequence of a pack, by the kernel of each kind of device.

The kernels are told where sequences begin, and so never see a pad token and never multiply by a
mask of all tokens with all tokens. They come with torch and torch_npu: none needs Transformer
Engine.

Shapes: T packed tokens, N query heads, M key-value heads (N is a multiple), D width of a query
or key head. The heads of values may have another width (multi-head latent attention).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mindrl.platform.device import DeviceKind

_MOST_SEQUENCES = 1024
"""In one call of Ascend's kernel."""


class _ByLength(NamedTuple):
    counts: Mapping[int, int]
    """How many sequences there are of each length."""
    place_T: Tensor
    """Where each token comes from."""
    natural_T: Tensor
    """The way back."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the sequences of a pack lie."""

    starts: tuple[int, ...]
    """First token of each of B sequences, and the end of the last: B + 1 numbers from 0 to T."""
    longest: int
    """Tokens of the longest sequence."""
    cumulative: Tensor
    """`starts` as int32 on the device."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [stop - start for start, stop in pairwise(self.starts)]

    @cached_property
    def by_length(self) -> _ByLength:
        """The same tokens, sequences of a length side by side."""
        first, lengths = torch.tensor(self.starts[:-1]), torch.tensor(self.lengths)
        counts = Counter(sorted(self.lengths))
        place_T = torch.cat(
            [(first[lengths == length, None] + torch.arange(length)).flatten() for length in counts]
        )
        device = self.cumulative.device
        return _ByLength(counts, place_T.to(device), place_T.argsort().to(device))


Kernel = Callable[[Tensor, Tensor, Tensor, Packing, float | None], Tensor]
"""(query_TND, key_TMD, value_TMD, packing, scale) -> [T, N, width of a value head].

A token attends to itself and to those before it in its sequence. The scale of the scores is
1 / sqrt(D) where it is None.
"""


ATTENTION_OPERATIONS = frozenset(
    {
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_flash_attention_forward",
        "npu::npu_fusion_attention",
    }
)
"""What the kernels call of torch and torch_npu."""


def attention_kernel(kind: DeviceKind) -> Kernel:
    """Return the kernel of a kind of device."""
    match kind:
        case "npu":
            return fused_attention
        case "gpu":
            return flash_attention
        case "cpu":
            return torch_attention


def torch_attention(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """Attend by torch's kernel of dense batches, once for all sequences of a length.

    Any device and any floating type.
    """
    by_length = packing.by_length
    heads = [tensor[by_length.place_T] for tensor in (query_TND, key_TMD, value_TMD)]
    sizes = [count * length for length, count in by_length.counts.items()]
    mixed: list[Tensor] = []
    for length, *parts in zip(
        by_length.counts, *(torch.split(t, sizes) for t in heads), strict=True
    ):
        query, key, value = (part.unflatten(0, (-1, length)) for part in parts)
        mixed.append(_dense_attention(query, key, value, scale).flatten(0, 1))
    return torch.cat(mixed)[by_length.natural_T]


def flash_attention(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """Attend by torch's flash attention for packs, on CUDA.

    Read in torch 2.13.0, `torch.nn.attention.varlen`: bfloat16 and float16 only, one width of all
    heads, a multiple of 8 and at most 256. Other types take `torch_attention`. The gradient is the
    same to the bit every time under `deterministic_gradients` only.
    """
    if query_TND.dtype not in (torch.bfloat16, torch.float16):
        return torch_attention(query_TND, key_TMD, value_TMD, packing, scale)
    varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
    query, key, value = _of_one_width(query_TND, key_TMD, value_TMD, multiple=8)
    mixed: Tensor = varlen_attn(
        query,
        key,
        value,
        packing.cumulative,
        packing.cumulative,
        packing.longest,
        packing.longest,
        scale=_scale(query_TND, scale),
        # As many tokens before a token as there are, none behind it.
        window_size=(-1, 0),
        enable_gqa=query.size(1) != key.size(1),
    )
    return mixed[..., : value_TMD.size(-1)]


def fused_attention(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """Attend by Ascend's fused kernel, on an NPU: in as many calls as the number of sequences asks.

    Read in torch_npu 2.10.0.post4 (`_op_plugin_docs.py`, `npu_native_functions_by_codegen.yaml`)
    and in MindSpeed core_r0.16.0: bfloat16, float16 and float32, keys and values of one shape, a
    width of at most 768, at most 1024 sequences in layout "TND". Run over a simulated CANN alone.
    """
    heads = _of_one_width(query_TND, key_TMD, value_TMD, multiple=1)
    mixed: list[Tensor] = []
    for first in range(0, len(packing.starts) - 1, _MOST_SEQUENCES):
        begin, *ends = packing.starts[first : first + _MOST_SEQUENCES + 1]
        some = [tensor[begin : ends[-1]] for tensor in heads]
        mixed.append(_fused(some, [end - begin for end in ends], _scale(query_TND, scale)))
    whole = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
    return whole[..., : value_TMD.size(-1)]


def _fused(heads: Sequence[Tensor], ends: list[int], scale: float) -> Tensor:
    torch_npu = import_module("torch_npu")
    query, key, value = heads
    mixed: Tensor = torch_npu.npu_fusion_attention(
        query,
        key,
        value,
        query.size(1),
        "TND",
        atten_mask=_hidden_from(query.device),
        scale=scale,
        keep_prob=1.0,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        # Causal from the lower right corner, with a mask that is compressed to 2048 tokens.
        sparse_mode=3,
    )[0]
    return mixed


def _dense_attention(
    query_BTND: Tensor, key_BTMD: Tensor, value_BTMD: Tensor, scale: float | None
) -> Tensor:
    # Of heads of two widths torch would write down the scores of all tokens with all tokens.
    heads = _of_one_width(query_BTND, key_BTMD, value_BTMD, multiple=1)
    query, key, value = (tensor.transpose(1, 2) for tensor in heads)
    mixed_BNTD = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        is_causal=True,
        scale=_scale(query_BTND, scale),
        enable_gqa=query.size(1) != key.size(1),
    )
    return mixed_BNTD.transpose(1, 2)[..., : value_BTMD.size(-1)]


def _scale(query: Tensor, scale: float | None) -> float:
    """Return the scale of heads that may be padded from now on."""
    return query.size(-1) ** -0.5 if scale is None else scale


def _of_one_width(*heads: Tensor, multiple: int) -> list[Tensor]:
    """Pad heads with zeros, which change no score; those of values are cut off again."""
    width = max(tensor.size(-1) for tensor in heads)
    width += -width % multiple
    return [
        tensor if tensor.size(-1) == width else functional.pad(tensor, (0, width - tensor.size(-1)))
        for tensor in heads
    ]


@cache
def _hidden_from(device: torch.device) -> Tensor:
    """Return the mask that every call shares, 4 MiB: True where the key comes after the query."""
    return torch.ones(2048, 2048, dtype=torch.bool, device=device).triu(diagonal=1)
