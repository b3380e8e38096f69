"""What the weight files of a model folder hold, by their headers alone. Imports no torch."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from mindrl.errors import ModelError
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription


def check_files(folder: str, model: ModelDescription) -> None:
    """Compare the weight files with what config.json asks for.

    Raises:
        ModelError: A file is unreadable, or a tensor is missing or has another shape.
    """
    found = tensor_shapes(folder)
    for name, shape in logical_shapes(model).items():
        if name not in found:
            raise ModelError(f"{folder}: no tensor {name}; config.json asks for {list(shape)}")
        if found[name] != shape:
            raise ModelError(
                f"{folder}: tensor {name} has shape {list(found[name])}; "
                f"config.json asks for {list(shape)}"
            )


def tensor_shapes(folder: str) -> Mapping[str, tuple[int, ...]]:
    """Read the names and shapes of all tensors of a folder.

    Raises:
        ModelError: There is no weight file, or one is unreadable.
    """
    with ExitStack() as stack:
        files = open_tensors(folder, stack, framework="np")
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in files.items()}


def open_tensors(
    folder: str, stack: ExitStack, *, framework: Literal["np", "pt"]
) -> dict[str, Any]:
    """Open all weight files; returns the file that holds each tensor.

    Args:
        folder: Of the model.
        stack: Closes the files.
        framework: What a slice of a tensor is read as: `np` needs no torch.

    Raises:
        ModelError: There is no weight file, or one is unreadable.
    """
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise ModelError(f"model folder {folder} has no .safetensors file")
    files: dict[str, Any] = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework=framework))
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        files |= dict.fromkeys(file.keys(), file)
    return files
