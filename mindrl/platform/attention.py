"""Causal attention within each sequence of a pack, with one kernel per kind of device.

The kernels receive the sequence boundaries, so they process no pad tokens and need no mask over all
pairs of tokens. They come with torch and torch_npu: none needs Transformer Engine.

Shapes: T packed tokens, N query heads, M key-value heads (N is a multiple of M), D width of a query
or key head. Value heads may have another width (multi-head latent attention).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mindrl.platform.device import DeviceKind

_MOST_SEQUENCES = 1024
"""Maximum number of sequences in one call of Ascend's kernel."""


class _ByLength(NamedTuple):
    counts: Sequence[tuple[int, int]]
    """Length and number of the sequences of each kind, in the order of the kinds."""
    place_T: Tensor
    """Index in the pack of each token of the sorted order."""
    natural_T: Tensor
    """Index in the sorted order of each token of the pack."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Boundaries of the sequences in a pack."""

    starts: tuple[int, ...]
    """First token of each of B sequences, and the end of the last: B + 1 numbers from 0 to T."""
    longest: int
    """Tokens of the longest sequence."""
    cumulative: Tensor
    """`starts` as int32 on the device."""
    kinds: tuple[Hashable, ...] | None = None
    """Sequences of one kind have equal length and are computed together; None uses the length."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return [stop - start for start, stop in pairwise(self.starts)]

    @cached_property
    def by_length(self) -> _ByLength:
        """The pack sorted so that sequences of one kind are adjacent."""
        lengths, rows_of = self.lengths, defaultdict[Any, list[int]](list)
        for row, kind in enumerate(self.kinds or lengths):
            rows_of[kind].append(row)
        rows = [rows_of[kind] for kind in sorted(rows_of)]
        counts = [(lengths[each[0]], len(each)) for each in rows]
        first = torch.tensor(self.starts[:-1])
        place_T = torch.cat(
            [
                (first[each, None] + torch.arange(length)).flatten()
                for each, (length, _) in zip(rows, counts, strict=True)
            ]
        )
        device = self.cumulative.device
        return _ByLength(counts, place_T.to(device), place_T.argsort().to(device))


Kernel = Callable[[Tensor, Tensor, Tensor, Packing, float | None], Tensor]
"""(query_TND, key_TMD, value_TMD, packing, scale) -> [T, N, width of a value head].

A token attends to itself and to earlier tokens of its sequence. A scale of None means 1 / sqrt(D).
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
"""Operators of torch and torch_npu that the kernels call."""


def attention_kernel(kind: DeviceKind, *, batch_invariant: bool = False) -> Kernel:
    """Return a device kind's kernel; `batch_invariant` selects the engine's kernel on CPU."""
    if batch_invariant and kind == "cpu":
        engine_attention: Kernel = import_module(
            "mindrl.platform.engine_operators"
        ).engine_attention
        return engine_attention
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
    """Compute attention with torch's dense kernel, in one call per sequence length.

    Runs on any device with any floating type.
    """
    by_length = packing.by_length
    heads = [tensor[by_length.place_T] for tensor in (query_TND, key_TMD, value_TMD)]
    sizes = [count * length for length, count in by_length.counts]
    mixed: list[Tensor] = []
    for (length, _), *parts in zip(
        by_length.counts, *(torch.split(t, sizes) for t in heads), strict=True
    ):
        query, key, value = (part.unflatten(0, (-1, length)) for part in parts)
        mixed.append(_dense_attention(query, key, value, scale).flatten(0, 1))
    return torch.cat(mixed)[by_length.natural_T]


def flash_attention(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """Compute attention with torch's flash attention for packs, on CUDA.

    Checked against torch 2.13.0, `torch.nn.attention.varlen`: bfloat16 and float16 only, equal
    widths of all heads, a multiple of 8 and at most 256. Other types use `torch_attention`.
    Gradients are bitwise reproducible only under `deterministic_gradients`.
    """
    if query_TND.dtype not in (torch.bfloat16, torch.float16):
        return torch_attention(query_TND, key_TMD, value_TMD, packing, scale)
    varlen_attn = import_module("torch.nn.attention.varlen").varlen_attn
    query, key, value = of_one_width(query_TND, key_TMD, value_TMD, multiple=8)
    mixed: Tensor = varlen_attn(
        query,
        key,
        value,
        packing.cumulative,
        packing.cumulative,
        packing.longest,
        packing.longest,
        scale=_scale(query_TND, scale),
        # All earlier tokens, no later ones.
        window_size=(-1, 0),
        enable_gqa=query.size(1) != key.size(1),
    )
    return mixed[..., : value_TMD.size(-1)]


def fused_attention(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """Compute attention with Ascend's fused kernel on an NPU, at most 1024 sequences per call.

    Checked against torch_npu 2.10.0.post4 (`_op_plugin_docs.py`,
    `npu_native_functions_by_codegen.yaml`) and MindSpeed core_r0.16.0: bfloat16, float16 and
    float32, keys and values of equal shape, a width of at most 768, at most 1024 sequences in
    layout "TND". Tested on a simulated CANN only.
    """
    heads = of_one_width(query_TND, key_TMD, value_TMD, multiple=1)
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
        atten_mask=hidden_from(query.device),
        scale=scale,
        keep_prob=1.0,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        # Causal from the lower right corner, with a mask compressed to 2048 tokens.
        sparse_mode=3,
    )[0]
    return mixed


def _dense_attention(
    query_BTND: Tensor, key_BTMD: Tensor, value_BTMD: Tensor, scale: float | None
) -> Tensor:
    # With two head widths torch would materialise the scores of all pairs of tokens.
    heads = of_one_width(query_BTND, key_BTMD, value_BTMD, multiple=1)
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
    """Return the scale, computed from the width before heads are padded."""
    return query.size(-1) ** -0.5 if scale is None else scale


def of_one_width(*heads: Tensor, multiple: int) -> list[Tensor]:
    """Pad heads with zeros, which change no score; the caller cuts the padding off again."""
    width = max(tensor.size(-1) for tensor in heads)
    width += -width % multiple
    return [
        tensor if tensor.size(-1) == width else functional.pad(tensor, (0, width - tensor.size(-1)))
        for tensor in heads
    ]


@cache
def hidden_from(device: torch.device) -> Tensor:
    """Return the mask shared by all calls, 4 MiB: True if the key comes after the query."""
    return torch.ones(2048, 2048, dtype=torch.bool, device=device).triu(diagonal=1)
