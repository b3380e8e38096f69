"""A safetensors file that takes its tensors one at a time, so that none waits in memory."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.models.placement import ShardingTable
from mindrl.models.sharding import dtype_of

TORCH_TYPES: Mapping[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_CODES: Mapping[DType, str] = {"float32": "F32", "bfloat16": "BF16"}


class TensorFile:
    """Knows all types and shapes beforehand; so each tensor has its place, in whatever order."""

    def __init__(self, path: Path, table: ShardingTable, dtype: DType) -> None:
        """Begin a new file with its header.

        Args:
            path: Of the file.
            table: The tensors.
            dtype: Of all of them but those that are always float32.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = path
        self.kinds = {name: (dtype_of(entry, dtype), entry.shape) for name, entry in table.items()}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        places: dict[str, int] = {}
        stop = 0
        # The wider type first, so that each tensor starts at a multiple of its element's size.
        for name in sorted(table, key=lambda name: (-ELEMENT_BYTES[self.kinds[name][0]], name)):
            kind, shape = self.kinds[name]
            places[name] = stop
            stop += math.prod(shape) * ELEMENT_BYTES[kind]
            offsets = [places[name], stop]
            header[name] = {"dtype": _CODES[kind], "shape": shape, "data_offsets": offsets}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.starts = {name: 8 + len(text) + place for name, place in places.items()}
        with path.open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)

    def empty(self, name: str) -> Tensor:
        """Return host memory for a tensor."""
        dtype, shape = self.kinds[name]
        return torch.empty(shape, dtype=TORCH_TYPES[dtype])

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor in its place.

        Raises:
            OSError: The file cannot be written.
        """
        dtype, shape = self.kinds[name]
        assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_TYPES[dtype], shape), name
        with self.path.open("r+b") as file:
            file.seek(self.starts[name])
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
