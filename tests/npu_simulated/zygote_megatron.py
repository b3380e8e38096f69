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
from zygote import Order, serve
from zygote_npu import join

from mindrl.platform.device import PLATFORMS, prepare_process

MINDSPEED = os.environ.get("MINDSPEED")


def prepare() -> None:
    """Import what a training process needs, as far as it touches no device."""
    kernels.install()
    if MINDSPEED:
        return
    # As MindSpeed has it: nothing is compiled.
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    import_module("torch_npu.contrib.transfer_to_npu")
    _name_types_as_on_cuda()
    import_module("mindrl.platform.patches.megatron_without_te").install()
    import_module("training_probe")


def join_adapted(order: Order, rank: int) -> None:
    """Meet the other ranks; MindSpeed asks a device which one it is as soon as it is imported."""
    if MINDSPEED:
        sys.path.insert(0, MINDSPEED)
        stand_ins.install()
        prepare_process(PLATFORMS["npu"])
    join(order, rank)


def _name_types_as_on_cuda() -> None:
    """As MindSpeed does: Megatron asks what type a parameter is by such a name."""
    plain = torch.Tensor.type

    def named(tensor: torch.Tensor, *arguments: Any, **words: Any) -> Any:
        found = plain(tensor, *arguments, **words)
        return found.replace("torch.npu", "torch.cuda") if isinstance(found, str) else found

    torch.Tensor.type = named


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), prepare, join_adapted)
