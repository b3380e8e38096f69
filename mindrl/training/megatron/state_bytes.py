"""Bytes of a rank's weights, gradients and optimizer, as Megatron-core 0.16.1 allocates them.

Megatron lays the gradients of each chunk's dense parameters into one flat buffer, and those of
its experts into another, in the reverse order of the parameters. With the distributed optimizer
the parameters lie in such buffers too: each starts at a multiple of 64 elements, a bucket ends at
a multiple of 128 and of the ranks that share it, and a rank optimises its equal part of each
bucket. The embedding that the first and the last stage both hold has a bucket of its own. Pure
Python and numpy.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import (
    ELEMENT_BYTES,
    EMBEDDING,
    DType,
    always_float32,
)
from mindrl.models.placement import LocalTensor, ShardingTable
from mindrl.models.sharding import Sharding

_PARAMETER_MULTIPLE, _BUCKET_MULTIPLE = 64, 128
_MAIN_WEIGHT_BYTES, _MOMENTS_BYTES, _GRADIENT_BYTES = 4, 8, 4
_SHARED = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Local names of the embedding of the first stage, and of its copy on the last one."""
_LAYER = re.compile(r"(?:decoder\.layers\.(\d+)\.)?(.*)")
_OF_CHUNK = ("embedding.", "decoder.final_layernorm.")
_OF_LAYER = (
    "input_layernorm.",
    "self_attention.linear_proj.",
    "self_attention.linear_qkv.",
    "self_attention.linear_q_proj.",
    "self_attention.linear_q_down_proj.",
    "self_attention.linear_q_up_proj.",
    "self_attention.linear_kv_down_proj.",
    "self_attention.linear_kv_up_proj.",
    "self_attention.q_layernorm.",
    "self_attention.k_layernorm.",
    "self_attention.kv_layernorm.",
    "pre_mlp_layernorm.",
    "mlp.linear_fc1.",
    "mlp.linear_fc2.",
    "mlp.router.",
    "mlp.experts.",
    "mlp.shared_experts.",
)
"""The order in which Megatron's modules register their parameters."""


@dataclass(frozen=True, kw_only=True)
class TrainedBytes:
    """What one rank allocates for a model that it trains."""

    weights: int
    gradients: int
    optimizer: int
    """Both moments, and in bfloat16 the main weights; once an update has made them."""


def trained_bytes(
    sharding: Sharding, layout: TrainLayout, *, distributed_optimizer: bool
) -> tuple[TrainedBytes, ...]:
    """Return what each rank allocates to train what it holds.

    Args:
        sharding: Who holds what, of `layout`.
        layout: Where the data-parallel ranks are.
        distributed_optimizer: Whether they share the state of the optimizer.
    """
    dense = _places(layout.dense_order.groups(("dp", "cp")))
    experts = _places(layout.experts_order.groups(("dp",)))
    tables = sharding.distinct_tables()
    shares_embedding = any(
        _is_copy(name, entry) for table in tables.values() for name, entry in table.items()
    )

    @cache
    def buffers(shard: str, dense_ranks: int, expert_ranks: int) -> list[_Buffer]:
        divisors = (dense_ranks, expert_ranks) if distributed_optimizer else None
        return list(_buffers(tables[shard], divisors, shares_embedding))

    @cache
    def float32_bytes(shard: str) -> int:
        entries = tables[shard].values()
        return sum(4 * prod(entry.shape) for entry in entries if _is_always_float32(entry))

    @cache
    def trained(
        shards: tuple[str, ...], in_dense: tuple[int, int], in_experts: tuple[int, int]
    ) -> TrainedBytes:
        placed = (
            (buffer, (in_experts if buffer.of_experts else in_dense)[0])
            for shard in shards
            for buffer in buffers(shard, in_dense[1], in_experts[1])
        )
        return _sum(placed, sharding.dtype, sum(map(float32_bytes, shards)))

    return tuple(
        trained(tuple(map(sharding.twin_of, held)), dense[rank], experts[rank])
        for rank, held in enumerate(sharding.held_by)
    )


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    """Where parameters lie in a bucket, in elements, padding included."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    size: int

    def optimized(self, place: int, ranks: int) -> int:
        """Count the elements of parameters in one of equal parts."""
        part = self.size // ranks
        low, high = place * part, (place + 1) * part
        both = np.minimum(self.stops, high) - np.maximum(self.starts, low)
        return int(np.maximum(both, 0).sum())


@dataclass(frozen=True, kw_only=True)
class _Buffer:
    """A flat buffer of one chunk: its dense parameters, or its experts."""

    of_experts: bool
    buckets: tuple[_Bucket, ...]
    ranks: int
    """That share the state of the optimizer."""


def _sum(buffers: Iterable[tuple[_Buffer, int]], dtype: DType, float32_bytes: int) -> TrainedBytes:
    size = optimized = 0
    for buffer, place in buffers:
        at = place if buffer.ranks > 1 else 0
        for bucket in buffer.buckets:
            size += bucket.size
            optimized += bucket.optimized(at, buffer.ranks)
    main = _MAIN_WEIGHT_BYTES if dtype == "bfloat16" else 0
    return TrainedBytes(
        weights=size * ELEMENT_BYTES[dtype] + float32_bytes,
        gradients=size * _GRADIENT_BYTES,
        optimizer=optimized * (main + _MOMENTS_BYTES),
    )


def _buffers(
    table: ShardingTable, ranks: tuple[int, int] | None, shares_embedding: bool
) -> Iterator[_Buffer]:
    """Lay the parameters of a shard out.

    Args:
        table: Of the shard.
        ranks: That share dense parameters, and experts; None lays out without padding.
        shares_embedding: Whether two stages hold the embedding.
    """
    parameters: dict[tuple[str, bool], list[tuple[str, int]]] = {}
    for name in sorted(table, key=_registration):
        if not _is_always_float32(table[name]):
            chunk, _, local = name.partition(".")
            key = chunk, ".mlp.experts." in local
            parameters.setdefault(key, []).append((local, prod(table[name].shape)))
    for (_, of_experts), sizes in parameters.items():
        runs = _runs(sizes[::-1], shares_embedding and ranks is not None)
        shared_by = ranks[of_experts] if ranks else 1
        buckets = tuple(_bucket(run, shared_by if ranks else None) for run in runs)
        yield _Buffer(of_experts=of_experts, buckets=buckets, ranks=shared_by)


def _runs(sizes: Sequence[tuple[str, int]], shares_embedding: bool) -> list[list[int]]:
    """Cut a buffer's parameters where a bucket ends."""
    runs: list[list[int]] = [[]]
    for name, size in sizes:
        if shares_embedding and name in _SHARED:
            runs += [[size], []]
        else:
            runs[-1].append(size)
    return [run for run in runs if run]


def _bucket(sizes: Sequence[int], ranks: int | None) -> _Bucket:
    """Lay parameters one behind the other; without padding where no ranks share them (None)."""
    counts = np.array(sizes, dtype=np.int64)
    multiple = _PARAMETER_MULTIPLE if ranks else 1
    padded = -(-counts // multiple) * multiple
    starts = np.cumsum(padded) - padded
    end = int(starts[-1] + counts[-1])
    divisor = lcm(ranks, _BUCKET_MULTIPLE) if ranks else 1
    return _Bucket(starts=starts, stops=starts + counts, size=-(-end // divisor) * divisor)


@cache
def _registration(name: str) -> tuple[str, int, int, int]:
    """Return a key that sorts local names as Megatron registers its parameters."""
    chunk, _, local = name.partition(".")
    found = _LAYER.fullmatch(local)
    assert found is not None
    layer, rest = found.groups()
    if layer is None:
        place = _first(local, _OF_CHUNK)
        return chunk, 2 * place, 0, 0
    return chunk, 1, int(layer), _first(rest, _OF_LAYER)


def _first(name: str, prefixes: Sequence[str]) -> int:
    """Return which prefix a name has; behind all of them where it has none."""
    found = (at for at, prefix in enumerate(prefixes) if name.startswith(prefix))
    return next(found, len(prefixes))


def _places(groups: Iterable[Sequence[int]]) -> Mapping[int, tuple[int, int]]:
    """Return each rank's place in its group, and the size of the group."""
    return {rank: (at, len(group)) for group in groups for at, rank in enumerate(group)}


def _is_copy(name: str, entry: LocalTensor) -> bool:
    """Say whether a local tensor is the last stage's copy of the embedding."""
    return name.endswith(f".{_SHARED[1]}") and any(
        placement.tensor == EMBEDDING for placement in entry.placements
    )


def _is_always_float32(entry: LocalTensor) -> bool:
    return bool(entry.placements) and always_float32(entry.placements[0].tensor)
