"""A prefork process with simulated NPUs, Megatron-core, vllm and vllm-ascend."""

import sys
from importlib import import_module
from multiprocessing.connection import Connection

from simulated import MINDSPEED
from zygote import Order, serve
from zygote_npu import join

from mindrl.platform.device import PLATFORMS, prepare_process


def prepare() -> None:
    """Import what touches no device."""
    import_module("torch_npu")
    if not MINDSPEED:
        import_all()


def join_adapted(order: Order, rank: int) -> None:
    """Meet the other ranks; MindSpeed asks a device which one it is as soon as it is imported."""
    if MINDSPEED:
        import_all()
    join(order, rank)


def import_all() -> None:
    """Become what a worker's process is before it meets others."""
    prepare_process(PLATFORMS["npu"])
    import_module("mindrl.launch.worker")
    import_module("mindrl.training.megatron.engine")
    # Else each process would; it imports what patches vLLM.
    import_module("vllm_ascend.worker.worker")
    for probe in ("training_probe", "engine_probe", "graphs_probe"):
        import_module(probe)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), prepare, join_adapted)
