"""A cluster that a user has started on this machine, as large as he says that it is."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from program import kill_all


@contextmanager
def ray_cluster(*cpus: int) -> Iterator[tuple[Sequence[subprocess.Popen[bytes]], dict[str, str]]]:
    """Start nodes with so many CPUs each, the head first; yields the environment to join too.

    They may have more than there are.
    """
    port = _free_port()
    address = f"127.0.0.1:{port}"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    # A short path: Ray makes sockets below it.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        head = _start_node(
            token,
            cpus[0],
            *("--head", f"--port={port}", f"--temp-dir={folder}"),
            *(f"--ray-client-server-port={_free_port()}", "--include-dashboard=false"),
        )
        deadline = time.monotonic() + 60
        while not _accepts(port) and time.monotonic() < deadline:
            time.sleep(0.2)
        nodes = [head, *(_start_node(token, each, f"--address={address}") for each in cpus[1:])]
        try:
            yield nodes, token | {"RAY_ADDRESS": address}
        finally:
            _end(nodes)


def _end(nodes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the nodes that are left, the head last, with all that they have started."""
    processes: list[psutil.Process] = []
    for node in reversed(nodes):
        if node.poll() is not None:
            continue
        processes += psutil.Process(node.pid).children(recursive=True)
        node.terminate()
        try:
            node.wait(timeout=30)
        except subprocess.TimeoutExpired:
            # It waits for a head that a test has killed.
            node.kill()
            node.wait()
    kill_all(psutil.wait_procs(processes, timeout=10)[1])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start_node(token: dict[str, str], cpus: int, *options: str) -> subprocess.Popen[bytes]:
    """Start a node on the loopback address."""
    ray = str(Path(sys.executable).with_name("ray"))
    common = ("--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats")
    return subprocess.Popen(
        [ray, "start", *common, f"--num-cpus={cpus}", *options],
        env=os.environ | token,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
