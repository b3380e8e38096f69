"""From the weight files of a folder into an engine, by the table of the rollout side.

Here each rank reads its own slices; in a run they come from the training side.
"""

from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch import Tensor

from mindrl.checkpoint.any_family import read_any_description
from mindrl.checkpoint.files import open_tensors
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.placement import Placement, ShardingTable, index_of
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.rollout.vllm.shards import EngineShards


def rollout_table(folder: str, layout: RolloutLayout) -> ShardingTable:
    """Return what this rank holds."""
    description = read_any_description(folder, to_plan=True)
    return vllm_sharding(description, layout, dtype="float32").table(dist.get_rank())


def load_one_by_one(shards: EngineShards, folder: str, table: ShardingTable) -> None:
    with ExitStack() as stack:
        files = open_tensors(folder, stack, framework="pt")
        for name, local in table.items():
            for placement in local.placements:
                _copy(files, placement, shards.open(name))
            shards.close(name)
    shards.finish()


def load_backwards(shards: EngineShards, folder: str, table: ShardingTable) -> None:
    """Open all, the last first, then close all: a transfer may finish them in any order."""
    with ExitStack() as stack:
        files = open_tensors(folder, stack, framework="pt")
        for name, local in reversed(table.items()):
            for placement in local.placements:
                _copy(files, placement, shards.open(name))
    for name in table:
        shards.close(name)
    shards.finish()


def _copy(files: dict[str, Any], placement: Placement, local: Tensor) -> None:
    source = files[placement.tensor].get_slice(placement.tensor)[index_of(placement.source)]
    part = local[index_of(placement.local)]
    axes = placement.axes or tuple(range(part.ndim))
    others = [axis for axis in range(part.ndim) if axis not in axes]
    part.permute(*others, *axes)[(0,) * len(others)].copy_(source)
