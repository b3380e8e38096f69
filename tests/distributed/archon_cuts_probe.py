"""What the test of FSDP2's own cuts calls in forked processes; see forked_workers.run."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from memory_probe import storage_bytes
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.orientation import oriented
from mindrl.models.placement import index_of
from mindrl.training.archon.meshes import Meshes, ranks_by_place
from mindrl.training.archon.sharding import archon_sharding

CUT_ROWS = (
    *("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    *("in_proj_z", "in_proj_b", "in_proj_a", "linear_attn"),
)
CUT_COLUMNS = ("o_proj", "down_proj", "out_proj")
CUT_BY_KIND = ("in_proj_qkv", "conv1d")
"""Rows of queries, of keys and of values, each cut by itself."""


def cuts(
    cases: list[tuple[ModelDescription, TrainLayout, int | None]],
) -> list[tuple[list[str], int]]:
    """Let FSDP2 cut numbered weights; returns what differs from the tables, and bytes of memory."""
    found = [_cut(*case) for case in cases]
    # A rank that ended could not be met any more.
    dist.barrier()
    return found


def _cut(
    model: ModelDescription, layout: TrainLayout, fsdp_size: int | None
) -> tuple[list[str], int]:
    shapes, first = logical_shapes(model), 1
    logical: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        logical[name] = torch.arange(first, first + count, dtype=torch.float32).view(shape)
        first += count
    meshes = Meshes(layout, "cpu", fsdp_size=fsdp_size)
    held = _sharded(dict(_dense(model, logical, meshes.tensor)), meshes.data)
    if model.moe:
        names = ("pp", "dp", "ep", "etp")
        ranks = ranks_by_place(layout.experts_order, {name: (name,) for name in names})
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names)
        held |= _sharded(dict(_experts(model, logical, mesh)), mesh["dp"])
    table = archon_sharding(model, layout, fsdp_size=fsdp_size).table(dist.get_rank())
    odd = [name for name, local in held.items() if (name in table) != (local.numel() > 0)]
    for name, entry in table.items():
        expected = torch.zeros(entry.shape)
        for each in entry.placements:
            part = logical[each.tensor][index_of(each.source)]
            oriented(expected, each.local, each.axes).copy_(part)
        odd += [name] * (not torch.equal(held[name], expected))
    return odd, storage_bytes(held.values())


def _sharded(tensors: dict[str, Tensor], mesh: DeviceMesh) -> dict[str, Tensor]:
    """Return what FSDP2 leaves this rank of each of some tensors."""
    module = nn.Module()
    for at, tensor in enumerate(tensors.values()):
        module.register_parameter(str(at), nn.Parameter(tensor))
    fully_shard(module, mesh=mesh)
    parameters = zip(tensors, module.parameters(), strict=True)
    return {name: parameter.to_local().detach() for name, parameter in parameters}


def _dense(
    model: ModelDescription, logical: dict[str, Tensor], mesh: DeviceMesh
) -> Iterator[tuple[str, Tensor]]:
    """Yield all but routed experts, cut by tensor parallelism as torch cuts."""
    tp, rank = mesh.size(), mesh.get_local_rank()
    for name, tensor in logical.items():
        if ".mlp.experts." in name:
            continue
        kind, dim = name.split(".")[-2], None
        if kind in CUT_ROWS:
            missing = -len(tensor) % tp
            whole = functional.pad(tensor, (0, 0, 0, missing)) if missing else tensor
            if kind in ("k_proj", "v_proj") and model.num_key_value_heads < tp:
                heads = tensor.unflatten(0, (model.num_key_value_heads, model.head_dim))
                whole = heads.repeat_interleave(tp // len(heads), 0).flatten(0, 1)
            part, dim = whole.chunk(tp)[rank], 0
        elif kind in CUT_BY_KIND:
            assert model.delta is not None
            parts = torch.split(tensor, list(model.delta.mixed_rows))
            part, dim = torch.cat([each.chunk(tp)[rank] for each in parts]), 0
        elif kind in CUT_COLUMNS:
            part, dim = tensor.chunk(tp, 1)[rank].contiguous(), 1
        else:
            part = tensor
        placement = Replicate() if dim is None else Shard(dim)
        yield name, DTensor.from_local(part, mesh, [placement]) if tp > 1 else part


def _experts(
    model: ModelDescription, logical: dict[str, Tensor], mesh: DeviceMesh
) -> Iterator[tuple[str, Tensor]]:
    """Yield the stacks of this expert-parallel rank's experts."""
    moe, etp = model.moe, mesh["etp"]
    assert moe is not None
    numbers = torch.arange(moe.num_experts).chunk(mesh["ep"].size())[mesh["ep"].get_local_rank()]

    def part(name: str, dim: int) -> Tensor:
        return logical[f"{name}_proj.weight"].chunk(etp.size(), dim)[etp.get_local_rank()]

    for layer in range(model.num_hidden_layers):
        here = f"model.layers.{layer}.mlp.experts."
        names = [f"{here}{number}." for number in numbers.tolist()]
        halves = [torch.cat([part(f"{name}gate", 0), part(f"{name}up", 0)]) for name in names]
        yield f"{here}gate_up", torch.stack(halves)
        yield f"{here}down", torch.stack([part(f"{name}down", 1) for name in names])
