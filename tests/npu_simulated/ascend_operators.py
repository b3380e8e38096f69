"""Ascend's fused operators for the simulated NPU, as their documents describe them.

They take the place of torch_npu's kernels, under torch_npu's own schemas: a call with a wrong name,
type or number of arguments fails as on a device. Import it behind `kernels.install`.

Shapes: T tokens, E experts, K chosen for a token.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from device_kernels import LIBRARIES, kernel
from torch import Tensor
from torch.nn import functional

_SCHEMAS = """
npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6)
 -> (Tensor, Tensor, Tensor);
moe_gating_top_k(Tensor x, int k, int k_group, int group_count, int group_select_mode, int renorm,
 int norm_type, bool out_flag, float routed_scaling_factor, float eps, Tensor? bias_opt=None)
 -> (Tensor, Tensor, Tensor);
npu_moe_init_routing_custom(Tensor x, Tensor expert_idx, *, Tensor? scale=None,
 Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1,
 int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False,
 int quant_mode=0, int[2] active_expert_range=[], int row_idx_type=0)
 -> (Tensor, Tensor, Tensor, Tensor);
device_print(str text) -> ();
device_print_tensor(Tensor value, str text) -> ()
"""
"""Of operators that vllm-ascend's extension defines."""
import_module("torch_npu.op_plugin.atb._atb_ops")  # defines its operators
_extension = torch.library.Library("_C_ascend", "FRAGMENT")
LIBRARIES.append(_extension)
for _schema in _SCHEMAS.replace("\n", "").split(";"):
    _extension.define(_schema)


@kernel("aten", "matmul_backward")
def matmul_backward(
    grad: Tensor, left: Tensor, right: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Torch has no such operator on the CPU, where its product is made of others."""
    a, b = (
        (left[None] if left.dim() == 1 else left),
        (right[:, None] if right.dim() == 1 else right),
    )
    grad = grad.unsqueeze(-2) if left.dim() == 1 else grad
    grad = grad.unsqueeze(-1) if right.dim() == 1 else grad
    found = (
        (grad @ b.mT).sum_to_size(a.shape).reshape(left.shape),
        (a.mT @ grad).sum_to_size(b.shape).reshape(right.shape),
    )
    return tuple(each if asked else None for each, asked in zip(found, mask, strict=True))


@kernel("npu", "npu_rms_norm")
def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + epsilon)
    return (x.float() * scale * gamma.float()).to(x.dtype), scale


@kernel("npu", "npu_add_rms_norm")
def add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    total = x1 + x2
    return *rms_norm(total, gamma, epsilon), total


@kernel("_C_ascend", "npu_add_rms_norm_bias")
def add_rms_norm_bias(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None = None, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    y, scale, total = add_rms_norm(x1, x2, gamma, epsilon)
    return y if beta is None else y + beta, scale, total


@kernel("npu", "npu_swiglu")
def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    gate, up = x.chunk(2, dim)
    return (functional.silu(gate.float()) * up.float()).to(x.dtype)


@kernel("atb", "_npu_rotary_embedding")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, table: Tensor, is_neox: bool
) -> None:
    for x in (query, key):
        heads = x.view(len(x), -1, head_size)
        cos, sin = (part[:, None].float() for part in table[positions.long()].chunk(2, -1))
        wide = heads.float()
        first, second = wide.chunk(2, -1) if is_neox else (wide[..., ::2], wide[..., 1::2])
        turned = first * cos - second * sin, second * cos + first * sin
        joined = torch.cat(turned, -1) if is_neox else torch.stack(turned, -1).flatten(-2)
        heads.copy_(joined)


@kernel("atb", "_npu_reshape_and_cache")
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    _keep_rows(key, key_cache, slots)
    _keep_rows(value, value_cache, slots)


def _keep_rows(new: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write a row for each slot into blocks, which keys and values may take turns in."""
    slots, size = slots.long(), cache.shape[1]
    cache[slots // size, slots % size] = new[: len(slots)].view(len(slots), *cache.shape[2:])


@kernel("npu", "npu_mrope")
def mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int],
    rotary_mode: str = "half",
    cache_mode: str = "default",
) -> tuple[Tensor, Tensor]:
    """Turn heads by one position for each token."""
    assert (list(mrope_section), cache_mode) == ([0, 0, 0], "default"), mrope_section
    found = query.clone(), key.clone()
    rotary_embedding(positions, *found, head_size, cos_sin_cache, rotary_mode == "half")
    return found


@kernel("npu", "npu_scatter_pa_kv_cache")
def scatter_pa_kv_cache(
    key: Tensor, value: Tensor, *caches_and_slots: Tensor, cache_mode: str
) -> None:
    assert cache_mode == "Norm", cache_mode
    key_cache, value_cache, slots = caches_and_slots
    _keep_rows(key, key_cache, slots)
    _keep_rows(value, value_cache, slots)


@kernel("npu", "npu_fused_infer_attention_score")
def fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] = (),
    actual_seq_lengths_kv: Sequence[int] = (),
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attend in layout TND, from blocks of a cache where there is a table of them."""
    assert input_layout == "TND", input_layout
    width = query.shape[-1]
    if query_rope is not None and key_rope is not None:
        width = value.shape[-1]
        query, key = torch.cat((query, query_rope), -1), torch.cat((key, key_rope), -1)
    if sparse_mode == 3:
        assert atten_mask is not None, "sparse_mode 3 takes a compressed mask"
        assert atten_mask.shape == (2048, 2048), atten_mask.shape
    heads = num_key_value_heads or num_heads
    found = query.new_zeros(*query.shape[:-1], width)
    ends = pairwise((0, *actual_seq_lengths_kv))
    for row, (begin, end) in enumerate(pairwise((0, *actual_seq_lengths))):
        first, last = next(ends)
        if block_table is None:
            own = [each[first:last] for each in (key, value)]
        else:
            last = actual_seq_lengths_kv[row]
            blocks = block_table[row, : -(-last // block_size)].long()
            own = [each[blocks].reshape(-1, heads, query.shape[-1])[:last] for each in (key, value)]
        found[begin:end] = _attend(query[begin:end], *own, scale, sparse_mode == 3)
    return found, torch.zeros(1)


@kernel("npu", "npu_fused_infer_attention_score_v2")
def fused_infer_attention_score_v2(
    query: Tensor,
    _key: Tensor,
    value: Tensor,
    *,
    query_rope: Tensor,
    key_rope: Tensor,
    actual_seq_kvlen: Sequence[int],
    block_table: Tensor,
    num_key_value_heads: int,
    softmax_scale: float,
    input_layout: str,
    block_size: int,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attend with one query of each sequence to latent rows in the blocks of a cache."""
    assert (input_layout, num_key_value_heads) == ("BNSD_NBSD", 1), input_layout
    found = torch.zeros(query.shape[1], query.shape[0], 1, value.shape[-1], dtype=query.dtype)
    for row, length in enumerate(actual_seq_kvlen[: len(query)]):
        blocks = block_table[row, : -(-length // block_size)].long()
        kept, turned = (
            each[blocks].reshape(-1, 1, each.shape[-1])[:length] for each in (value, key_rope)
        )
        own = torch.cat((query[row], query_rope[row]), -1).transpose(0, 1)
        answer = _attend(own, torch.cat((kept, turned), -1), kept, softmax_scale, False)
        found[:, row] = answer.transpose(0, 1)
    return found, torch.zeros(1)


@kernel("npu", "npu_interleave_rope")
def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Put even elements before odd ones, and turn each with its partner."""
    wide = torch.cat((x[..., ::2], x[..., 1::2]), -1).float()
    first, second = wide.chunk(2, -1)
    other = torch.cat((-second, first), -1)
    return (wide * cos.float() + other * sin.float()).to(x.dtype)


@kernel("npu", "npu_kv_rmsnorm_rope_cache")
def kv_rmsnorm_rope_cache(
    kv: Tensor, gamma: Tensor, *given: Tensor, epsilon: float, cache_mode: str, **_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalize latent rows, turn their rotary parts, and keep both in blocks."""
    assert cache_mode == "PA", cache_mode
    cos, sin, index, k_cache, ckv_cache = given
    latent, rotary = kv.split((len(gamma), kv.shape[-1] - len(gamma)), -1)
    kept, turned = rms_norm(latent, gamma, epsilon)[0], interleave_rope(rotary, cos, sin)
    _keep_rows(turned, k_cache, index)
    _keep_rows(kept, ckv_cache, index)
    return k_cache, ckv_cache, turned, kept


@kernel("npu", "npu_transpose_batchmatmul")
def transpose_batchmatmul(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    *,
    perm_y: Sequence[int],
    **_: Any,
) -> Tensor:
    return (input.float() @ weight.float()).permute(*perm_y).to(input.dtype)


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, is_causal: bool) -> Tensor:
    """Attend with heads in the middle; the last query has the last key."""
    q, k, v = (each.transpose(0, 1).float() for each in (query, key, value))
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    scores = q @ k.transpose(1, 2) * scale
    if is_causal:
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool)
        scores.masked_fill_(hidden.triu(scores.shape[2] - scores.shape[1] + 1), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).to(query.dtype)


@kernel("_C_ascend", "moe_gating_top_k")
def moe_gating_top_k(x: Tensor, k: int, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Choose experts of the best groups; a bias counts for the choice alone."""
    k_group, group_count, group_select_mode, renorm, norm_type, _, factor, _, *biases = given
    scores_TE = x.float().sigmoid() if norm_type == 1 else x.float().softmax(-1)
    judged_TE = scores_TE + sum(each.float() for each in biases if each is not None)
    if group_count > 1:
        grouped_TGE = judged_TE.view(len(x), group_count, -1)
        best_TG = grouped_TGE.topk(2 if group_select_mode == 1 else 1, -1).values.sum(-1)
        is_out_TG = torch.ones_like(best_TG, dtype=torch.bool)
        is_out_TG.scatter_(1, best_TG.topk(k_group, -1).indices, False)
        judged_TE = grouped_TGE.masked_fill(is_out_TG[..., None], -torch.inf).flatten(1)
    chosen_TK = judged_TE.topk(k, -1).indices
    weights_TK = scores_TE.gather(1, chosen_TK)
    if renorm:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    weights_TK = weights_TK * factor
    return weights_TK.to(x.dtype), chosen_TK.int(), scores_TE


@kernel("_C_ascend", "npu_moe_init_routing_custom")
def moe_init_routing(
    x: Tensor,
    expert_idx: Tensor,
    *,
    quant_mode: int,
    expert_tokens_num_type: int,
    active_expert_range: Sequence[int],
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Put the rows of each own expert together; -1 is the place of a row of another's."""
    assert (quant_mode, expert_tokens_num_type) == (-1, 1), (quant_mode, expert_tokens_num_type)
    first, last = active_expert_range
    of_rows = expert_idx.flatten().long()
    order = of_rows.argsort(stable=True)
    own = order[(of_rows[order] >= first) & (of_rows[order] < last)]
    rows = torch.zeros(len(of_rows), x.shape[-1], dtype=x.dtype)
    rows[: len(own)] = x[own // expert_idx.shape[1]]
    places = torch.full((len(of_rows),), -1, dtype=torch.int32)
    places[own] = torch.arange(len(own), dtype=torch.int32)
    counts = torch.bincount(of_rows[own] - first, minlength=last - first)
    return rows, places, counts, torch.zeros(1)


@kernel("npu", "npu_moe_init_routing_v2")
def moe_init_routing_v2(
    x: Tensor, expert_idx: Tensor, *, quant_mode: int = -1, **given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return moe_init_routing(x, expert_idx, quant_mode=quant_mode, **given)


@kernel("npu", "npu_moe_token_unpermute")
def moe_token_unpermute(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, **_: Any
) -> Tensor:
    """Add up what the experts of each token say, by their weights."""
    assert probs is not None, "each expert has a weight"
    said_TKH = permuted_tokens[sorted_indices.long()].view(*probs.shape, -1)
    return (said_TKH.float() * probs.float()[..., None]).sum(1).to(permuted_tokens.dtype)


@kernel("npu", "npu_grouped_matmul")
def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    *,
    group_list: Tensor,
    group_type: int | None = None,
    group_list_type: int = 0,
    **_: Any,
) -> list[Tensor]:
    """Multiply the rows of each expert by its matrix; rows behind the last group are zeros."""
    assert (len(x), len(weight), group_type) == (1, 1, 0), (len(x), len(weight), group_type)
    ends = (group_list if group_list_type == 0 else group_list.cumsum(0)).tolist()
    found = torch.zeros(len(x[0]), weight[0].shape[-1])
    for (begin, end), expert in zip(pairwise((0, *ends)), weight[0], strict=True):
        found[begin:end] = x[0][begin:end].float() @ expert.float()
    return [found.to(x[0].dtype)]


@kernel("atb", "_npu_matmul_add_fp32")
def matmul_add_fp32(x: Tensor, weight: Tensor, total: Tensor) -> None:
    total += x.float().T @ weight.float()
