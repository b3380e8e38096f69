"""Import torch_npu with the simulated CANN once, then fork prepared processes on request.

Started by `simulated.SimulatedNpus` as `python zygote_npu.py DESCRIPTOR`. No device is touched
before the fork, so each process finds the machine that its order describes.
"""

import socket
import sys
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Connection

from zygote import Order, serve

from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import Seat, join_process_group


def join(order: Order, rank: int) -> None:
    """Meet the other ranks by the product's own rendezvous; a device has its rank's number."""
    address = ("127.0.0.1", order.port)
    join_process_group(
        PLATFORMS["npu"],
        Seat(rank=rank, world_size=order.ranks, local_device=rank),
        address,
        timeout=timedelta(minutes=2),
        listener=socket.create_server(address) if rank == 0 else None,
    )


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), lambda: import_module("torch_npu"), join)
