"""Imports Megatron-core and vLLM once, then forks prepared processes on request.

Started by `forked_workers.ForkedWorkers` as `python zygote.py DESCRIPTOR`, or once for several of
them as `python forked_workers.py SOCKET`. Each forked process
joins its peers and calls a function: one that builds a worker by the product's own code, which
then obeys calls until told to stop, or one whose result is wanted. Processes over another device
are served by a script that calls `serve` with what is to be prepared and how ranks join.
"""

import gc
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from mindrl.platform.device import PLATFORMS, prepare_process
from mindrl.platform.garbage import no_collection


@dataclass(frozen=True, kw_only=True)
class Order:
    """A group of processes to fork."""

    caller: str
    """Socket to which each of them connects."""
    port: int
    """Address at which rank 0 gathers the others."""
    ranks: int
    function: str
    """`module:function` that each calls; a module of this folder or of mindrl."""
    arguments: tuple[Any, ...]
    stays: bool
    """Whether the function returns an object that receives calls; else its result is sent back."""
    environment: Mapping[str, str]
    """Of the forked processes alone."""


Join = Callable[[Order, int], None]
"""Connects this process, as that rank, with the others of its group."""


def serve(orders: Connection, prepare: Callable[[], None], join: Join) -> None:
    """Prepare this process, then fork the ranks of a group for each order."""
    _run_once(prepare)
    _obey(orders, join)


def serve_all(path: str, prepare: Callable[[], None], join: Join) -> None:
    """Prepare this process, then serve each that connects to a socket from a fork of its own."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        _run_once(prepare)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _obey(Connection(connection.detach()), join)
                os._exit(0)
            connection.close()
            while _reap():
                pass


def _obey(orders: Connection, join: Join) -> None:
    send(orders, "ready")
    while (order := receive(orders)) is not None:
        for rank in range(order.ranks):
            if os.fork() == 0:
                orders.close()
                work(order, rank, join)
                os._exit(0)
        while _reap():
            pass


def work(order: Order, rank: int, join: Join) -> None:
    """Run one rank of a group: call the function, and serve calls if requested."""
    os.environ.update(order.environment)
    with Client(order.caller, family="AF_UNIX") as calls:
        calls.send(rank)
        try:
            join(order, rank)
            module, function = order.function.split(":")
            made = getattr(import_module(module), function)(*order.arguments)
            send(calls, ("result", None if order.stays else made))
            while order.stays and (call := receive(calls)) is not None:
                method, arguments = call
                send(calls, ("result", getattr(made, method)(*arguments)))
            if not order.stays:
                # Rank 0 has the store with which others may still create a group.
                receive(calls)
        except EOFError:
            return
        except Exception:  # noqa: BLE001 - whatever it is, the caller is to see it
            send(calls, ("failure", traceback.format_exc()))


def send(connection: Connection, value: Any) -> None:
    """Send by value: torch teaches a connection's own `send` to share memory instead."""
    connection.send_bytes(pickle.dumps(value))


def receive(connection: Connection) -> Any:
    """Receive a value from `send`."""
    return pickle.loads(connection.recv_bytes())


_MODULES = (
    "mindrl.launch.worker",
    "mindrl.training.megatron.engine",
    "mindrl.training.archon.engine",
    "mindrl.training.fsdp.engine",
    "mindrl.rollout.vllm.engine",
)
"""What forked processes need; each would import it for itself otherwise."""


_LATE = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.model_executor.layers.quantization.online.base",
    "compressed_tensors",
    "torch._dynamo",
)
"""What an engine imports when it starts."""


def _prepare() -> None:
    prepare_process(PLATFORMS["cpu"])
    probes = sorted(path.stem for path in Path(__file__).parent.glob("*_probe.py"))
    for name in (*_MODULES, *probes):
        import_module(name)  # only now: the process is prepared
    import_module("no_doubles").install()
    _prepare_engines()


def _join(order: Order, rank: int) -> None:
    import torch.distributed as dist

    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(order.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(order.port),
    )
    dist.init_process_group("gloo", timeout=timedelta(minutes=2))


def _prepare_engines() -> None:
    """Do once what takes each engine longer than all the rest of its start.

    Those are imports of hundreds of modules, and searches through all loggers, and through all
    modules for kernels to replace.
    """
    for name in _LATE:
        import_module(name)
    import_module("vllm.logger").configure_logging(import_module("vllm.config").LoggingConfig())
    platform = import_module("vllm.platforms").current_platform
    platform.register_triton_kernel_overrides()
    platform.register_triton_kernel_overrides = lambda: None


def _run_once(prepare: Callable[[], None]) -> None:
    """Prepare this process, and exclude the objects that all ranks share from garbage collection.

    A full collection waits until the young objects are a quarter of all others: among a million
    that were imported it would never come, and the groups of earlier layouts, which lie in cycles,
    would stay with three threads each.
    """
    with no_collection():
        prepare()
    gc.collect()
    gc.freeze()
    gc.collect()


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        serve(Connection(int(sys.argv[1])), _prepare, _join)
    else:
        serve_all(sys.argv[1], _prepare, _join)
