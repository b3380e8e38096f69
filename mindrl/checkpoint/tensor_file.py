"""A safetensors file that takes its tensors one at a time, so that none waits in memory."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.models.placement import Shape

TORCH_TYPES: Mapping[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_CODES: Mapping[DType, str] = {"float32": "F32", "bfloat16": "BF16"}


class TensorFile:
    """Knows all types and shapes beforehand; so each tensor has its place, in whatever order."""

    def __init__(self, path: Path, tensors: Mapping[str, tuple[DType, Shape]]) -> None:
        """Begin a new file with its header.

        Args:
            path: Of the file.
            tensors: Type and shape of each tensor.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = path
        self.tensors = tensors
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        places: dict[str, int] = {}
        stop = 0
        # The wider type first, so that each tensor starts at a multiple of its element's size.
        for name in sorted(tensors, key=lambda name: (-ELEMENT_BYTES[tensors[name][0]], name)):
            dtype, shape = tensors[name]
            places[name] = stop
            stop += math.prod(shape) * ELEMENT_BYTES[dtype]
            offsets = [places[name], stop]
            header[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": offsets}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.starts = {name: 8 + len(text) + place for name, place in places.items()}
        with path.open("xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: Tensor) -> None:
        """Put a tensor in its place.

        Raises:
            OSError: The file cannot be written.
        """
        dtype, shape = self.tensors[name]
        assert (tensor.dtype, tuple(tensor.shape)) == (TORCH_TYPES[dtype], shape), name
        with self.path.open("r+b") as file:
            file.seek(self.starts[name])
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
