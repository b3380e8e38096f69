"""Attention of some tokens of each sequence to other ones, whose results can be joined.

A block returns the log-sum-exp of its scores: the results of several blocks of keys, weighted by
it, are the attention to all of them. The gradient of a block needs the joined result and the joined
log-sum-exp.

Shapes: Q queries, K keys (tokens of a pack), N query heads, M key-value heads, D width of a query
or key head. Value heads may have another width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindrl.platform.attention import Packing, hidden_from, of_one_width

_ROWS_OF_A_SOFTMAX = 8
"""Copies of a row's maximum and sum that Ascend's kernel keeps."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Keys that the queries of a block may see."""

    queries: Packing
    """Bounds of the queries of each sequence."""
    keys: Packing
    """Bounds of the keys of each sequence."""
    is_causal: bool
    """Whether query i sees key i and earlier ones, of equally many; otherwise it sees all."""
    scale: float
    """Multiplies the products of queries and keys."""


Heads = tuple[Tensor, Tensor, Tensor]
"""Query [Q, N, D], key [K, M, D] and value [K, M, D], or their gradients."""


class Joined(NamedTuple):
    """Attention of queries to the keys of one block or of several."""

    mixed: Tensor
    """[Q, N, D]."""
    logsumexp: Tensor
    """Log-sum-exp of scores, float32 [Q, N]."""


class BlockAttention(NamedTuple):
    """The two passes of a block."""

    forward: Callable[[Heads, Block], Joined]
    backward: Callable[[Tensor, Heads, Joined, Block], Heads]
    """(gradient of the result of all blocks, heads, that result, block) -> gradients."""


def block_attention(device_type: str) -> BlockAttention:
    """Return the passes for a type of device."""
    match device_type:
        case "npu":
            return BlockAttention(_fused, _fused_gradients)
        case "cuda":
            return BlockAttention(_flash, _flash_gradients)
        case _:
            return BlockAttention(_dense, _dense_gradients)


def rows_of(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Return some rows of a tensor, or all of them."""
    return tensor if rows is None else tensor.index_select(0, rows)


def add_rows(whole: Tensor, rows: Tensor | None, part: Tensor) -> None:
    """Add a part to some rows of a tensor, or to all of them, in place."""
    if rows is None:
        whole += part
    else:
        whole.index_add_(0, rows, part.to(whole.dtype))


def join(mixed: Tensor, logsumexp: Tensor, rows: Tensor | None, part: Joined) -> None:
    """Join the attention of some rows to more keys with their attention so far, in place."""
    before, so_far = rows_of(logsumexp, rows), rows_of(mixed, rows)
    after = torch.logaddexp(before, part.logsumexp)
    joined = so_far * (before - after).exp()[..., None]
    joined += part.mixed.float() * (part.logsumexp - after).exp()[..., None]
    if rows is None:
        mixed.copy_(joined)
        logsumexp.copy_(after)
    else:
        mixed.index_copy_(0, rows, joined)
        logsumexp.index_copy_(0, rows, after)


def _dense(heads: Heads, block: Block) -> Joined:
    """Call torch's kernel for CPUs once per length of a sequence."""
    width = heads[2].size(-1)
    query, key, value = of_one_width(*heads, multiple=1)
    mixed, logsumexp = torch.empty_like(query), query.new_empty(query.shape[:2]).float()
    for at, seen in _by_length(block):
        result, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[at].transpose(1, 2),
            *(_heads_of(each[seen], query.size(1)) for each in (key, value)),
            is_causal=block.is_causal,
            scale=block.scale,
        )
        mixed[at], logsumexp[at] = result.transpose(1, 2), sums.transpose(1, 2)
    return Joined(mixed[..., :width], logsumexp)


def _dense_gradients(gradient: Tensor, heads: Heads, joined: Joined, block: Block) -> Heads:
    gradient, query, key, value, mixed = of_one_width(gradient, *heads, joined.mixed, multiple=1)
    found = [torch.empty_like(each) for each in (query, key, value)]
    for at, seen in _by_length(block):
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient[at].transpose(1, 2),
            query[at].transpose(1, 2),
            *(_heads_of(each[seen], query.size(1)) for each in (key, value)),
            mixed[at].transpose(1, 2),
            joined.logsumexp[at].transpose(1, 2),
            0.0,
            block.is_causal,
            scale=block.scale,
        )
        found[0][at] = parts[0].transpose(1, 2)
        for whole, part in zip(found[1:], parts[1:], strict=True):
            # Query heads that share a key-value head.
            shared = part.unflatten(1, (whole.size(1), -1)).sum(2)
            whole[seen] = shared.transpose(1, 2)
    return _cut(found, heads)


def _by_length(block: Block) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield places of queries and of keys, [sequences, length], of sequences of one kind."""
    queries, keys = block.queries.by_length, block.keys.by_length
    first_query = first_key = 0
    for (length, count), (of_keys, _) in zip(queries.counts, keys.counts, strict=True):
        ends = first_query + length * count, first_key + of_keys * count
        yield (
            queries.place_T[first_query : ends[0]].view(count, length),
            keys.place_T[first_key : ends[1]].view(count, of_keys),
        )
        first_query, first_key = ends


def _heads_of(each: Tensor, heads: int) -> Tensor:
    """Return [sequences, length, M, D] as [sequences, heads, length, D], heads repeated."""
    return each.transpose(1, 2).repeat_interleave(heads // each.size(2), dim=1)


def _cut(gradients: Sequence[Tensor], heads: Heads) -> Heads:
    """Return the gradients without padding."""
    query, key, value = (
        each[..., : head.size(-1)] for each, head in zip(gradients, heads, strict=True)
    )
    return query, key, value


def _flash(heads: Heads, block: Block) -> Joined:
    """Call torch's flash attention for packs on CUDA, torch 2.13.0. Not run on a GPU."""
    width = heads[2].size(-1)
    query, key, value = of_one_width(*heads, multiple=8)
    mixed, sums_NQ, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, *_bounds(block), 0.0, block.is_causal, False, scale=block.scale
    )
    return Joined(mixed[..., :width], sums_NQ.transpose(0, 1).contiguous())


def _flash_gradients(gradient: Tensor, heads: Heads, joined: Joined, block: Block) -> Heads:
    gradient, query, key, value, mixed = of_one_width(gradient, *heads, joined.mixed, multiple=8)
    # Without dropout no random state is read.
    unused = torch.empty(0, dtype=torch.uint64, device=query.device)
    found = torch.ops.aten._flash_attention_backward(
        gradient,
        query,
        key,
        value,
        mixed,
        joined.logsumexp.transpose(0, 1).contiguous(),
        *_bounds(block),
        0.0,
        block.is_causal,
        unused,
        unused,
        scale=block.scale,
    )
    return _cut(found, heads)


def _bounds(block: Block) -> tuple[Tensor, Tensor, int, int]:
    queries, keys = block.queries, block.keys
    return queries.cumulative, keys.cumulative, queries.longest, keys.longest


def _fused(heads: Heads, block: Block) -> Joined:
    """Call Ascend's fused kernel, torch_npu 2.10.0.post4. Tested on a simulated CANN only."""
    torch_npu = import_module("torch_npu")
    width = heads[2].size(-1)
    query, key, value = of_one_width(*heads, multiple=1)
    mixed, most, total, *_ = torch_npu.npu_fusion_attention(
        query, key, value, query.size(1), "TND", scale=block.scale, keep_prob=1.0, **_seen(block)
    )
    return Joined(mixed[..., :width], most[..., 0] + total[..., 0].log())


def _fused_gradients(gradient: Tensor, heads: Heads, joined: Joined, block: Block) -> Heads:
    gradient, query, key, value, mixed = of_one_width(gradient, *heads, joined.mixed, multiple=1)
    most = joined.logsumexp[..., None].expand(-1, -1, _ROWS_OF_A_SOFTMAX).contiguous()
    found = torch.ops.npu.npu_fusion_attention_grad(
        query,
        key,
        value,
        gradient,
        query.size(1),
        "TND",
        softmax_max=most,
        # exp(score - log-sum-exp) / 1 is the probability among the keys of all blocks.
        softmax_sum=torch.ones_like(most),
        attention_in=mixed,
        scale_value=block.scale,
        keep_prob=1.0,
        **_seen(block),
    )
    return _cut(found[:3], heads)


def _seen(block: Block) -> dict[str, Any]:
    ends = {
        "actual_seq_qlen": list(block.queries.starts[1:]),
        "actual_seq_kvlen": list(block.keys.starts[1:]),
    }
    if not block.is_causal:
        return ends | {"sparse_mode": 0}
    return ends | {"sparse_mode": 3, "atten_mask": hidden_from(block.queries.cumulative.device)}
