"""A zygote over simulated NPUs that has vllm and vllm-ascend, of the releases that fit each other.

The processes build mindrl's engine by the product's own code. `MINDSPEED` names a checkout of the
pinned commit, which then is in the same process, as on a node.
"""

import os
import sys
from importlib import import_module
from multiprocessing.connection import Connection

import kernels
import stand_ins
import vllm_ascend_parts
from zygote import serve
from zygote_npu import join

from mindrl.platform.device import PLATFORMS, prepare_process


def prepare() -> None:
    """Import all that an engine needs."""
    kernels.install()
    import_module("ascend_operators")
    stand_ins.install()
    vllm_ascend_parts.install()
    if folder := os.environ.get("MINDSPEED"):
        sys.path.insert(0, folder)
        prepare_process(PLATFORMS["npu"])
    import_module("mindrl.rollout.vllm.engine")
    # Else each process would; it imports what patches vLLM.
    import_module("vllm_ascend.worker.worker")
    vllm_ascend_parts.replace_kernels()
    import_module("engine_probe")


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), prepare, join)
