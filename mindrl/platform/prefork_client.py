"""The program that Ray starts as a worker: it requests a forked worker from the prefork server.

Run by path, with the arguments of Ray's `setup_worker.py`, which it replaces. It imports nothing
from mindrl, because its duration delays the worker. If no server answers, it runs Ray's
program.
"""

import array
import json
import os
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec

SOCKET_VARIABLE = "MINDRL_STEM"
"""Variable with the path of the prefork server's socket."""
_ENVIRONMENT = "--serialized-runtime-env-context="
"""Argument of a worker with its own environment, which needs a new interpreter."""


def main() -> None:
    """Send the command line, environment and outputs of this process to the prefork server."""
    path = os.environ.get(SOCKET_VARIABLE)
    if path and not any(each.startswith(_ENVIRONMENT) for each in sys.argv):
        with suppress(OSError):
            _request_fork(path)
            return
    ray = find_spec("ray")
    assert ray is not None, "Ray started this process"
    assert ray.origin is not None, "Ray is a package"
    own = os.path.join(os.path.dirname(ray.origin), "_private/workers/setup_worker.py")  # noqa: PTH118, PTH120
    os.execv(sys.executable, [sys.executable, own, *sys.argv[1:]])  # noqa: S606


def _request_fork(path: str) -> None:
    folder = os.getcwd()  # noqa: PTH109 - pathlib takes as long to import as all the rest
    order = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": folder}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(path)
        outputs = array.array("i", [1, 2])
        server.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, outputs)])
        server.sendall(json.dumps(order).encode())
        server.shutdown(socket.SHUT_WR)
        if not server.recv(1):
            raise ConnectionResetError("the prefork server has ended")


if __name__ == "__main__":
    main()
