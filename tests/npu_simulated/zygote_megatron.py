"""A zygote over simulated NPUs that has Megatron-core, adapted to them by MindSpeed where it is.

`MINDSPEED` names a checkout of the pinned commit. Without it torch_npu alone makes an NPU of what
Megatron calls CUDA; of mindrl's patches those that need no MindSpeed are installed.
"""

import os
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import kernels
import stand_ins
import torch
from zygote import serve
from zygote_npu import join

from mindrl.platform.device import PLATFORMS, prepare_process


def prepare() -> None:
    """Import all that a training process needs."""
    kernels.install()
    if folder := os.environ.get("MINDSPEED"):
        sys.path.insert(0, folder)
        stand_ins.install()
        prepare_process(PLATFORMS["npu"])
    else:
        # As MindSpeed has it: nothing is compiled.
        os.environ["TORCH_COMPILE_DISABLE"] = "1"
        import_module("torch_npu.contrib.transfer_to_npu")
        _name_types_as_on_cuda()
        import_module("mindrl.platform.patches.megatron_without_te").install()
    import_module("training_probe")


def _name_types_as_on_cuda() -> None:
    """As MindSpeed does: Megatron asks what type a parameter is by such a name."""
    plain = torch.Tensor.type

    def named(tensor: torch.Tensor, *arguments: Any, **words: Any) -> Any:
        found = plain(tensor, *arguments, **words)
        return found.replace("torch.npu", "torch.cuda") if isinstance(found, str) else found

    torch.Tensor.type = named


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), prepare, join)
