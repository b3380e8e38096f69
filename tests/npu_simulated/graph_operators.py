"""Ascend's operators for attention in graphs, as their documents describe them.

Import it behind `ascend_operators`.
"""

from typing import Any

import torch
from ascend_operators import fused_infer_attention_score, fused_infer_attention_score_v2
from device_kernels import Function, kernel
from torch import Tensor


def _with_out(name: str, function: Function) -> None:
    """Let an operator write into tensors that it gets, with a workspace that it needs not."""

    @kernel("npu", f"{name}.out")
    def into(*given: Any, workspace: Tensor, out: list[Tensor], **words: Any) -> None:
        assert workspace.numel() > 0, "a workspace has bytes"
        for to, made in zip(out[:1], function(*given, **words)[:1], strict=True):
            to.copy_(made.view_as(to))

    @kernel("npu", f"_{name}_get_max_workspace")
    def workspace_of(*_: Any, **__: Any) -> Tensor:
        return torch.zeros(512, dtype=torch.uint8)


_with_out("npu_fused_infer_attention_score", fused_infer_attention_score)
_with_out("npu_fused_infer_attention_score_v2", fused_infer_attention_score_v2)
