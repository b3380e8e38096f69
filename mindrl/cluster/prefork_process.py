"""Process of the prefork server: imports, then forks a worker for each received command line.

A process with one thread can be forked after any imports; this one opens no device and starts no
thread.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from mindrl.platform.device import PLATFORMS, DeviceKind, prepare_process
from mindrl.platform.environment import replace_environment
from mindrl.platform.garbage import no_collection
from mindrl.platform.guard import die_with

ENDINGS = "endings"
"""File next to the socket: a line per ended worker, with its process id and exit code."""
_LANGUAGE = "--language="
_OOM_SCORE = 1000
"""Value that Ray sets for its workers: if memory runs out, the kernel kills a worker first."""


def main() -> None:
    """Serve the driver that started this process, until the driver ends."""
    driver, path, answer, kind, megatron, modules = sys.argv[1:]
    die_with(int(driver))
    endings = Path(path).with_name(ENDINGS)
    signal.signal(signal.SIGCHLD, lambda *_: _record(endings))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        began = time.monotonic()
        _import(cast("DeviceKind", kind), modules.split(","), megatron=megatron == "True")
        os.write(int(answer), f"{time.monotonic() - began}\n".encode())
        os.close(int(answer))
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become_worker(connection)
            connection.close()


def _record(endings: Path) -> None:
    """Reap the workers that have ended, and record how."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with endings.open("a", encoding="ascii") as file:
                file.write(f"{ended[0]} {os.waitstatus_to_exitcode(ended[1])}\n")


def _import(kind: DeviceKind, modules: Sequence[str], *, megatron: bool) -> None:
    """Import what workers need; exclude the shared objects from garbage collection."""
    # Ray reads at import which job a worker belongs to, so each worker imports it itself; the
    # engines work without it.
    sys.modules["ray"] = None  # type: ignore[assignment]
    with no_collection():
        prepare_process(PLATFORMS[kind], megatron=megatron)
        for name in modules:
            import_module(name)
    del sys.modules["ray"]
    gc.freeze()


def _become_worker(connection: socket.socket) -> None:
    """Run the program in Ray's command line until it ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = _received(connection)
    # Ray ends the remaining processes in the group of a worker that has ended.
    os.setpgrp()
    replace_environment(order["environment"])
    os.chdir(order["folder"])
    Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE), "ascii")
    # Flags of the interpreter may precede the program.
    arguments = [each for each in order["arguments"] if not each.startswith(_LANGUAGE)]
    while arguments[0].startswith("-"):
        del arguments[0]
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    os._exit(0)


def _received(connection: socket.socket) -> dict[str, Any]:
    """Read an order, use its outputs as this process's outputs, and acknowledge it."""
    with connection:
        _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
        for own, given in enumerate(outputs, start=1):
            os.dup2(given, own)
            os.close(given)
        with connection.makefile("rb") as file:
            order: dict[str, Any] = json.load(file)
        connection.sendall(b"+")
    return order
