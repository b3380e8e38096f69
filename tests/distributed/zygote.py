"""Imports Megatron-core and vLLM once, then forks worker processes on request.

Started by `forked_workers.ForkedWorkers` as `python zygote.py DESCRIPTOR`. Each forked process
joins its peers, builds a worker by the product's own code, and obeys calls until told to stop.
"""

import os
import pickle
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from typing import Any

from mindrl.config.run import RunConfig
from mindrl.platform.device import PLATFORMS, prepare_process


def serve(orders: Connection) -> None:
    """Fork the ranks of a group for each order: (address of the caller, host port, config)."""
    prepare_process(PLATFORMS["cpu"])
    from mindrl.launch.worker import build_worker  # only now: the process is prepared

    orders.send("ready")
    while (order := orders.recv()) is not None:
        caller, port, config = order
        for rank in range(config.world_size):
            if os.fork() == 0:
                orders.close()
                work(build_worker, caller, port, rank, config)
                os._exit(0)
        while _reap():
            pass


def work(
    build_worker: Callable[..., Any], caller: str, port: int, rank: int, config: RunConfig
) -> None:
    """Become one rank of a group and obey its caller."""
    import torch.distributed as dist

    with Client(caller, family="AF_UNIX") as calls:
        calls.send(rank)
        try:
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(config.world_size),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            dist.init_process_group("gloo", timeout=timedelta(minutes=2))
            worker = build_worker(config, PLATFORMS["cpu"])
            send(calls, ("result", None))
            while (call := receive(calls)) is not None:
                method, arguments = call
                send(calls, ("result", getattr(worker, method)(*arguments)))
        except EOFError:
            return
        except Exception:  # noqa: BLE001 - whatever it is, the caller is to see it
            send(calls, ("failure", traceback.format_exc()))


def send(connection: Connection, value: Any) -> None:
    """Send by value: torch teaches a connection's own `send` to share memory instead."""
    connection.send_bytes(pickle.dumps(value))


def receive(connection: Connection) -> Any:
    """Receive what `send` sent."""
    return pickle.loads(connection.recv_bytes())


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
