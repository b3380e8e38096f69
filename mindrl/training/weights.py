"""Weights in from a Hugging Face folder and out to one, by the sharding tables."""

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
)
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from mindrl.errors import ModelError, OutputError
from mindrl.models.files import open_tensors
from mindrl.models.orientation import oriented
from mindrl.models.placement import Placement, ShardingTable, slices
from mindrl.training.model import unwrap

_CARRIED_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def local_tensors(chunks: Sequence[nn.Module], table: ShardingTable) -> dict[str, Tensor]:
    """Return this rank's tensors that the table names, viewed in the table's shapes.

    Args:
        chunks: This rank's part of the model, chunk by chunk.
        table: Of this rank.
    """
    made = _made(chunks)
    return {name: made[name].data.view(entry.shape) for name, entry in table.items()}


def check_table(chunks: Sequence[nn.Module], table: ShardingTable) -> None:
    """Assert that a table describes exactly the parameters that Megatron made."""
    made = _made(chunks)
    parameters = {name for name, tensor in made.items() if isinstance(tensor, nn.Parameter)}
    assert parameters <= table.keys() <= made.keys(), parameters ^ table.keys()
    for name, entry in table.items():
        found, wanted = tuple(made[name].shape), entry.shape
        # Megatron too looks at two-dimensional parameters that hold several experts as at three.
        assert found == wanted or (
            len(found) < len(wanted) and made[name].numel() == math.prod(wanted)
        ), f"{name}: Megatron has {found}, the table {wanted}"


def mark_parameters(network: nn.Module) -> None:
    """Mark matrices that are cut between ranks, and experts, as Megatron's optimizer needs it.

    Megatron marks cut matrices only where it initialises weights itself; without the marks the
    gradient norm would count those of the first tensor-parallel rank only. It marks experts for
    a gradient reduction of their own only where ep > 1; with another etp than tp they need it too.
    """
    for module in network.modules():
        match module:
            case ColumnParallelLinear() | VocabParallelEmbedding():
                dim = 0
            case RowParallelLinear():
                dim = 1
            case _:
                continue
        if module.weight is not None:
            set_tensor_model_parallel_attributes(module.weight, True, dim, 1)
            if getattr(module, "is_expert", False):
                module.weight.allreduce = False


@torch.no_grad()
def import_weights(folder: str, local: Mapping[str, Tensor], table: ShardingTable) -> None:
    """Fill local tensors from safetensors, reading only the slices that this rank needs.

    Raises:
        ModelError: A file or tensor is missing, unreadable or of another shape.
    """
    with ExitStack() as stack:
        files = open_tensors(folder, stack, framework="pt")
        for name, entry in table.items():
            local[name].zero_()
            for placement in entry.placements:
                part = _read(folder, files, placement)
                oriented(local[name], placement.local, placement.axes).copy_(part)


def export_weights(source: str, target: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a Hugging Face folder: safetensors, config, tokenizer, chat template.

    Args:
        source: The folder that the model came from; its config and tokenizer are carried over.
        target: The new folder. It appears whole or not at all; an older one is replaced.
        tensors: Logical tensors, whole.

    Raises:
        OutputError: The folder cannot be written.
    """
    building = target.with_name(f".{target.name}.incomplete")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        save_file(weights, building / "model.safetensors", metadata={"format": "pt"})
        for name in _CARRIED_FILES:
            if (Path(source) / name).is_file():
                shutil.copyfile(Path(source) / name, building / name)
        _write_config(Path(source), building, weights)
        # safetensors writes for the owner alone; the other files follow the user's umask.
        (building / "model.safetensors").chmod((building / "config.json").stat().st_mode)
        retired = target.with_name(f".{target.name}.replaced")
        if target.exists():
            # A killed export may have left one, which would block the renaming.
            shutil.rmtree(retired, ignore_errors=True)
            target.rename(retired)
        building.rename(target)
        shutil.rmtree(retired, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"the model could not be exported to {target}: {error}") from error


def _made(chunks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Collect parameters and buffers under the names of the sharding table."""
    return {
        f"chunk{index}.{name}": tensor
        for index, chunk in enumerate(chunks)
        for name, tensor in chain(unwrap(chunk).named_parameters(), unwrap(chunk).named_buffers())
    }


def _write_config(source: Path, building: Path, weights: Mapping[str, Tensor]) -> None:
    values = json.loads((source / "config.json").read_text(encoding="utf-8"))
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
    values["torch_dtype" if "torch_dtype" in values else "dtype"] = dtype
    (building / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _read(folder: str, files: Mapping[str, Any], placement: Placement) -> Tensor:
    name, box = placement.tensor, placement.source
    if name not in files:
        raise ModelError(f"{folder}: no tensor {name}")
    source = files[name].get_slice(name)
    shape = source.get_shape()
    fits = len(shape) == len(box) and all(
        stop <= size for size, (_, stop) in zip(shape, box, strict=True)
    )
    if not fits:
        raise ModelError(f"{folder}: tensor {name} has shape {shape}, config.json asks for more")
    part: Tensor = source[slices(box)]
    return part
