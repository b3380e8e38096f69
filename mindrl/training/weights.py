"""Weights in from a Hugging Face folder and out to one, by the sharding tables."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from mindrl.errors import ModelError, OutputError
from mindrl.models.files import open_tensors
from mindrl.models.placement import Placement, ShardingTable, slices

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


def local_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return this rank's parameters by the local names of the sharding table."""
    return {name: parameter.data for name, parameter in network.named_parameters()}


def check_table(local: Mapping[str, Tensor], table: ShardingTable) -> None:
    """Assert that a table describes exactly the parameters that Megatron made."""
    made = {name: tuple(tensor.shape) for name, tensor in local.items()}
    described = {name: entry.shape for name, entry in table.items()}
    assert made == described, set(made.items()) ^ set(described.items())


def mark_tensor_parallel(network: nn.Module, tables: Sequence[ShardingTable]) -> None:
    """Mark the parameters that are cut between the tensor-parallel ranks.

    Megatron does this where it initialises weights itself; without the marks the global
    gradient norm would count the parts of the first rank only.

    Args:
        network: The GPT model.
        tables: The sharding tables of all tensor-parallel ranks.
    """
    first, last = tables[0], tables[-1]
    for name, parameter in network.named_parameters():
        pairs = zip(first[name].placements[0].source, last[name].placements[0].source, strict=True)
        cut = [dim for dim, (here, there) in enumerate(pairs) if here != there]
        # Megatron always marks the biases itself.
        if cut and parameter.dim() > 1:
            set_tensor_model_parallel_attributes(parameter, True, cut[0], 1)


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
                local[name][slices(placement.local)].copy_(part)


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
