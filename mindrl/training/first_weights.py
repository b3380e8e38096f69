"""Initial weights of a model, for every training engine."""

import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mindrl.checkpoint.adapter_folder import open_adapters
from mindrl.checkpoint.readers import ReadBox, fill, folder_reader
from mindrl.models.decoder import VALUE_HEAD
from mindrl.models.placement import Box, Shape, ShardingTable, index_of


def first_weights(
    local: Mapping[str, Tensor],
    table: ShardingTable,
    source: str | Mapping[str, Tensor],
    random_head: tuple[int, int] | None = None,
) -> None:
    """Fill a rank's tensors from a folder, or from those of a model with the same table.

    `random_head` is (hidden size, seed): draws a value head if the folder has none.

    Raises:
        ModelError: A file or tensor is missing, unreadable or of another shape.
    """
    if isinstance(source, str):
        drawn = {VALUE_HEAD: random_value_head(*random_head)} if random_head else {}
        import_weights(source, local, table, drawn)
        return
    assert source.keys() == local.keys(), "the folder and the layout must match"
    for name, tensor in local.items():
        tensor.copy_(source[name])


def import_weights(
    folder: str,
    local: Mapping[str, Tensor],
    table: ShardingTable,
    drawn: Mapping[str, Tensor] | None = None,
) -> None:
    """Fill this rank's tensors from safetensors, reading only the slices that it needs.

    `drawn` holds logical tensors used where the folder lacks them.

    Raises:
        ModelError: A file or tensor is missing, unreadable or of another shape.
    """
    with ExitStack() as stack:
        read = folder_reader(folder, stack, drawn)
        for name, entry in table.items():
            fill(local[name], entry, read)


def first_factors(
    local: Mapping[str, Tensor],
    table: ShardingTable,
    shapes: Mapping[str, Shape],
    source: str | int,
) -> None:
    """Fill a rank's adapter factors from a PEFT folder (`source`: str) or draw them (a seed).

    `shapes` maps each logical factor to its shape.

    Raises:
        ModelError: A file or tensor is missing, unreadable or of another shape.
    """
    with ExitStack() as stack:
        if isinstance(source, str):
            file = open_adapters(source, shapes, stack, framework="pt")
            read: ReadBox = partial(_stored_factor, file)
        else:
            read = partial(_drawn_factor, shapes, source)
        for name, entry in table.items():
            fill(local[name], entry, read)


def _stored_factor(file: Any, name: str, box: Box) -> Tensor:
    part: Tensor = file.get_slice(name)[index_of(box)]
    return part


def _drawn_factor(shapes: Mapping[str, Shape], seed: int, name: str, box: Box) -> Tensor:
    """Draw A as PEFT does, uniform within ±1 / sqrt(in); B starts at zero.

    The numbers are the same in every layout.
    """
    whole = torch.zeros(shapes[name])
    if name.endswith("lora_A.weight"):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        bound = whole.size(1) ** -0.5
        whole.uniform_(-bound, bound, generator=generator)
    return whole[index_of(box)]


def random_value_head(hidden_size: int, seed: int) -> Tensor:
    """Return a random head [1, H], the same on every rank, with TRL's standard deviation.

    Normal, with a standard deviation of 1 / sqrt(H + 1), so that values have size 1 if the hidden
    states do.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, hidden_size, generator=generator).div((hidden_size + 1) ** 0.5)
