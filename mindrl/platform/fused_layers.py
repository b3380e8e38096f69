"""The fused norm of NPUs. MindSpeed brings the other fused parts of a layer.

Shapes: `...` tokens, H width of the norm.
"""

from importlib import import_module

from torch import Tensor


def fused_rms_norm(hidden: Tensor, weight_H: Tensor, epsilon: float) -> Tensor:
    """Return the root-mean-square norm of the last dimension, [..., H], on an NPU.

    One kernel forward and one backward, which keep a float32 number for each token.
    """
    normed: Tensor = import_module("torch_npu").npu_rms_norm(hidden, weight_H, epsilon=epsilon)[0]
    return normed
