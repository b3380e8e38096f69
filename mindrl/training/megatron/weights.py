"""This rank's Megatron weights: their names, shapes and optimizer marks."""

import math
from collections.abc import Sequence
from itertools import chain

from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
)
from torch import Tensor, nn

from mindrl.models.placement import ShardingTable
from mindrl.platform.patches.megatron_grouped_gemm import grouped_experts
from mindrl.training.megatron.adapters import Adapter
from mindrl.training.megatron.model import unwrap
from mindrl.training.megatron.modules import HeadInput

_GROUPED = grouped_experts()


def local_tensors(chunks: Sequence[nn.Module], table: ShardingTable) -> dict[str, Tensor]:
    """Return this rank's tensors by the names of its table, viewed in the table's shapes."""
    made = made_tensors(chunks)
    return {name: made[name].data.view(entry.shape) for name, entry in table.items()}


def check_table(chunks: Sequence[nn.Module], table: ShardingTable) -> None:
    """Assert that a table describes exactly the parameters that Megatron created."""
    made = made_tensors(chunks)
    parameters = {name for name, tensor in made.items() if isinstance(tensor, nn.Parameter)}
    assert parameters <= table.keys() <= made.keys(), parameters ^ table.keys()
    for name, entry in table.items():
        found, wanted = tuple(made[name].shape), entry.shape
        # Megatron also views two-dimensional parameters that hold several experts in three.
        assert found == wanted or (
            len(found) < len(wanted) and made[name].numel() == math.prod(wanted)
        ), f"{name}: Megatron has {found}, the table has {wanted}"


def mark_parameters(network: nn.Module) -> None:
    """Mark sharded matrices and experts as Megatron's optimizer requires.

    Megatron 0.16 marks sharded matrices only if it initialises weights itself, 0.18 always; without
    the marks the gradient norm would count only the first tensor-parallel rank's. It marks experts
    for a separate gradient reduction only if ep > 1; they also need it if etp differs from tp.
    """
    for module in network.modules():
        is_expert = isinstance(module, _GROUPED) or getattr(module, "is_expert", False)
        for weight, dim in _cut_weights(module):
            if "partition_dim" not in vars(weight):
                set_tensor_model_parallel_attributes(weight, True, dim, 1)
            if is_expert:
                weight.allreduce = False  # type: ignore[attr-defined]


def _cut_weights(module: nn.Module) -> list[tuple[Tensor, int]]:
    """Return a module's own matrices that are cut over ranks, with the dimension of the cut."""
    match module:
        case _ if isinstance(module, _GROUPED):
            # Transposed: see `sharding`.
            return [(module.weight1, 1), (module.weight2, 0)]
        case Adapter(is_expert=True):
            # Each rank has different experts.
            return [(module.lora_A, 1), (module.lora_B, 0)]
        case Adapter():
            return [(module.lora_B, 0) if module.cuts_rows else (module.lora_A, 1)]
        case ColumnParallelLinear() | VocabParallelEmbedding() | HeadInput(is_cut=True):
            dim = 0
        case RowParallelLinear():
            dim = 1
        case _:
            return []
    return [] if module.weight is None else [(module.weight, dim)]


def made_tensors(chunks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Return parameters and buffers under the names of the sharding table."""
    return {
        f"chunk{index}.{name}": tensor
        for index, chunk in enumerate(chunks)
        for name, tensor in chain(unwrap(chunk).named_parameters(), unwrap(chunk).named_buffers())
    }
