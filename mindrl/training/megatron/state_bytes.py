"""Bytes of a rank's weights, gradients and optimizer, as Megatron-core 0.16.1 allocates them.

Megatron lays the gradients of each chunk's dense parameters into one flat buffer, and those of its
experts into another, in the reverse order of the parameters. With the distributed optimizer the
parameters are in such buffers too: each starts at a multiple of 64 elements, a bucket ends at a
multiple of 128 and of the ranks that share it, and a rank optimises its equal part of each bucket.
Gradients that are reduced during the backward pass are in several buckets, on the first stage. The
embedding that the first and the last stage both hold has its own bucket.

torch's AdamW updates tensor by tensor. It makes the root of a second moment, then its quotient,
while the quotient of the tensor before still exists. Fused optimizers of other packages make less.
Pure Python and numpy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import ELEMENT_BYTES, EMBEDDING, always_float32
from mindrl.models.placement import LocalTensor, ShardingTable
from mindrl.models.sharding import Sharding
from mindrl.training.trained_bytes import TrainedBytes

_PARAMETER_MULTIPLE, _BUCKET_MULTIPLE = 64, 128
_MAIN_WEIGHT_BYTES, _MOMENTS_BYTES, _GRADIENT_BYTES = 4, 8, 4
_SHARED = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Local names of the first stage's embedding, and of its copy on the last stage."""


def trained_bytes(
    sharding: Sharding,
    layout: TrainLayout,
    *,
    distributed_optimizer: bool,
    bucket_size: int | None = None,
) -> tuple[TrainedBytes, ...]:
    """Return the bytes that each rank allocates to train its part of `sharding`.

    With the distributed optimizer data-parallel ranks share the optimizer's state. `bucket_size` is
    `MegatronTrainingConfig.bucket_size`.
    """
    tables = sharding.distinct_tables()
    shares_embedding = any(
        _is_copy(name, entry) for table in tables.values() for name, entry in table.items()
    )
    main = _MAIN_WEIGHT_BYTES if sharding.dtype == "bfloat16" else 0

    @cache
    def buckets(shard: str, ranks: int, least: int | None) -> list[_Bucket]:
        return list(_buckets(tables[shard], ranks, shares_embedding, least))

    @cache
    def of_shard(shard: str, place: int, ranks: int, least: int | None) -> TrainedBytes:
        kept = sum(prod(entry.shape) for entry in tables[shard].values() if _is_kept(entry))
        optimized = [prod(each.shape) for each in tables[shard].values() if not _is_kept(each)]
        size = sum(optimized)
        if distributed_optimizer:
            found = buckets(shard, ranks, least)
            size = sum(bucket.size for bucket in found)
            optimized = [each for bucket in found for each in bucket.optimized(place, ranks)]
        *_, second, first = sorted([0, 0, *optimized])
        return TrainedBytes(
            weights=size * ELEMENT_BYTES[sharding.dtype] + kept * ELEMENT_BYTES["float32"],
            gradients=size * _GRADIENT_BYTES,
            optimizer=sum(optimized) * (main + _MOMENTS_BYTES),
            step=(2 * first + second) * ELEMENT_BYTES["float32"],
        )

    # A rank holds a shard of dense parameters, then one of experts: their groups in that order.
    places = (
        layout.dense_order.places_in_groups(("dp", "cp")),
        layout.experts_order.places_in_groups(("dp",)),
    )
    stages = [coordinate.get("pp", 0) for coordinate in layout.dense_order.coordinates]
    trained = []
    for rank, held in enumerate(sharding.held_by):
        pairs = zip(held, places, strict=False)
        # Reductions of later stages have time in the pipeline: Megatron gives them one bucket.
        least = bucket_size if stages[rank] == 0 else None
        parts = [of_shard(sharding.twin_of(shard), *place[rank], least) for shard, place in pairs]
        trained.append(_joined(parts))
    return tuple(trained)


def _joined(parts: Sequence[TrainedBytes]) -> TrainedBytes:
    """Add up dense parameters and experts, whose optimizers take their steps in turn."""
    return TrainedBytes(
        weights=sum(each.weights for each in parts),
        gradients=sum(each.gradients for each in parts),
        optimizer=sum(each.optimizer for each in parts),
        step=max(each.step for each in parts),
    )


@dataclass(frozen=True, kw_only=True)
class _Bucket:
    """Offsets of parameters in a bucket, in elements; `size` includes padding."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    size: int

    def optimized(self, place: int, ranks: int) -> list[int]:
        """Return the elements of each parameter in part `place` of `ranks` equal parts."""
        part = self.size // ranks
        low, high = place * part, (place + 1) * part
        both = np.minimum(self.stops, high) - np.maximum(self.starts, low)
        return [*map(int, np.maximum(both, 0))]


def _buckets(
    table: ShardingTable, ranks: int, shares_embedding: bool, least: int | None
) -> Iterator[_Bucket]:
    """Yield the buckets of a shard, chunk by chunk, shared by `ranks` ranks.

    A bucket ends at the parameter that fills it to `least` elements, padding included.
    """
    chunks: dict[str, list[tuple[str, int]]] = {}
    for name, entry in table.items():
        if not _is_kept(entry):
            chunk, _, local = name.partition(".")
            chunks.setdefault(chunk, []).append((local, prod(entry.shape)))
    for sizes in chunks.values():
        runs: list[list[int]] = [[]]
        for name, size in reversed(sizes):
            if shares_embedding and name in _SHARED:
                runs += [[size], []]
                continue
            runs[-1].append(size)
            if least is not None and _end(runs[-1]) >= least:
                runs.append([])
        yield from (_bucket(run, ranks) for run in runs if run)


def _end(sizes: Sequence[int]) -> int:
    return sum(map(_padded, sizes[:-1])) + sizes[-1]


def _padded(size: int) -> int:
    return -(-size // _PARAMETER_MULTIPLE) * _PARAMETER_MULTIPLE


def _bucket(sizes: Sequence[int], ranks: int) -> _Bucket:
    counts = np.array(sizes, dtype=np.int64)
    padded = np.array([_padded(size) for size in sizes], dtype=np.int64)
    starts = np.cumsum(padded) - padded
    stops = starts + counts
    divisor = lcm(ranks, _BUCKET_MULTIPLE)
    return _Bucket(starts=starts, stops=stops, size=-(-int(stops[-1]) // divisor) * divisor)


def _is_copy(name: str, entry: LocalTensor) -> bool:
    """Return whether a local tensor is the last stage's copy of the embedding."""
    return name.endswith(f".{_SHARED[1]}") and any(
        placement.tensor == EMBEDDING for placement in entry.placements
    )


def _is_kept(entry: LocalTensor) -> bool:
    """Return whether a local tensor stays float32, outside the parameter buffers."""
    return bool(entry.placements) and always_float32(entry.placements[0].tensor)
