"""Replacement for MindSpeed's adaptor without a checkout of it: torch_npu's own, without patches.

torch_npu makes an NPU of what Megatron calls CUDA, as it does for MindSpeed too.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

_TOLD = frozenset(
    {
        *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size"),
        *("sequence_parallel", "moe_grouped_gemm", "fp8"),
        *("use_fused_rmsnorm", "use_fused_swiglu", "use_fused_rotary_pos_emb"),
    }
)
"""What MindSpeed reads, of what mindrl tells it."""


def repatch(args: Mapping[str, object]) -> None:
    """Take the layout, which here changes nothing."""
    assert args.keys() == _TOLD, sorted(args.keys() ^ _TOLD)


def _name_types_as_on_cuda() -> None:
    """As MindSpeed does: Megatron asks what type a parameter is by such a name."""
    plain = torch.Tensor.type

    def named(tensor: torch.Tensor, *arguments: Any, **words: Any) -> Any:
        found = plain(tensor, *arguments, **words)
        return found.replace("torch.npu", "torch.cuda") if isinstance(found, str) else found

    torch.Tensor.type = named


# As MindSpeed has it: nothing is compiled.
os.environ["TORCH_COMPILE_DISABLE"] = "1"
import_module("torch_npu.contrib.transfer_to_npu")
_name_types_as_on_cuda()
