"""One of two ranks: joins the other, adds up their numbers, and prints its address.

Started by test_rendezvous.py as `python joiner.py RANK HOST PORT [LISTENER]`. Prints one JSON
object.
"""

import json
import socket
import sys
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import Seat, join_process_group

if __name__ == "__main__":
    rank, host, port, *descriptor = sys.argv[1:]
    join_process_group(
        PLATFORMS["cpu"],
        Seat(rank=int(rank), world_size=2, local_device=int(rank)),
        (host, int(port)),
        timeout=timedelta(seconds=60),
        listener=socket.socket(fileno=int(descriptor[0])) if descriptor else None,
    )
    number = torch.tensor([10.0 + int(rank)])
    dist.all_reduce(number)
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    dist.barrier()
    print(json.dumps({"rank": dist.get_rank(), "sum": number.item(), "listening": listening}))
    dist.destroy_process_group()
