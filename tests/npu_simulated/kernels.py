"""Register torch's CPU kernels for the real torch_npu, in a process with the simulated CANN."""

import os
import warnings
from pathlib import Path

import torch

_KEPT = frozenset(
    {
        *("_copy_from_and_resize", "_local_scalar_dense", "_pin_memory", "_reshape_alias"),
        *("_npu_format_cast", "_npu_format_cast.aclnn", "_npu_format_cast.input_dtype"),
        *("_to_copy", "as_strided", "as_strided_", "clone", "contiguous", "copy_", "copy_memory_"),
        *("empty.memory_format", "empty_like", "empty_strided", "empty_with_format"),
        *("empty_with_swapped_memory", "get_npu_format", "get_storage_size", "is_pinned"),
        *("is_set_to", "new_empty_strided", "record_stream", "resize_", "resize_as_"),
        *("set_", "set_.source_Storage", "set_.source_Storage_storage_offset"),
        *("set_.source_Tensor", "unsafe_empty_with_format"),
        *("view", "view_as_complex", "view_as_real"),
    }
)
"""What torch_npu does by itself: memory, copies, formats. Views are kept by their schema."""


def install() -> None:
    """Replace torch_npu's kernels of aten, which would call kernels of CANN; call it once."""
    import torch_npu  # noqa: F401 - its kernels must be there to be replaced

    library = Path(os.environ["ASCEND_HOME_PATH"]).parent / "lib/libsimulated_kernels.so"
    torch.ops.load_library(str(library))
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
    names = [each.removeprefix("aten::") for each in registered if each.startswith("aten::")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says of each that it was registered before
        torch.ops.simulated_npu.take_over([name for name in names if _is_replaced(name)])


def _is_replaced(name: str) -> bool:
    if name in _KEPT or name.startswith("npu_"):
        return False
    operator, _, overload = name.partition(".")
    try:
        schema = torch._C._get_schema(f"aten::{operator}", overload)
    except RuntimeError:
        # torch_npu adds a few names of its own to aten.
        return False
    aliases = [each.alias_info for each in schema.returns]
    return not any(alias is not None and not alias.is_write for alias in aliases)
