"""Real workers in forked processes, behind the interface of `cluster.WorkerGroup`.

Ray is left out, everything else is the product: the same workers, the same dispatch. Imports
happen once per test session, so a group of two ranks is up in a few seconds. Parts of a worker
are tested the same way, by a function that is called in forked processes.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, Pipe
from pathlib import Path
from random import SystemRandom
from typing import Any

from zygote import Order, receive, send

from mindrl.platform.device import PLATFORMS, DeviceKind
from mindrl.preflight.run_shardings import RunPlan

ZYGOTE = Path(__file__).with_name("zygote.py")
BUILD_WORKER = "mindrl.launch.worker:build_worker"


class ForkedWorkers:
    """A zygote process and the groups that are forked from it."""

    def __init__(
        self,
        log: Path,
        script: Path = ZYGOTE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a script that serves orders; without an environment it has that of a CPU worker."""
        self.orders, theirs = Pipe()
        with theirs, log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno())],
                env={**os.environ, **(_of_cpu_worker() if environment is None else environment)},
                pass_fds=[theirs.fileno()],
                stdout=output,
                stderr=output,
            )
        self.ready = False
        self.environment: dict[str, str] = {}
        """Processes that are forked from now on."""

    def start(
        self,
        plan: RunPlan,
        build: str = BUILD_WORKER,
        *,
        kind: DeviceKind = "cpu",
        ranks: int | None = None,
    ) -> "ForkedGroup":
        """Fork the ranks and wait until `build` has built all of them.

        None is one per device that trains.
        """
        arguments = (plan, PLATFORMS[kind])
        group = self._fork(build, arguments, ranks or plan.config.world_size, stays=True)
        group.collect()
        return group

    def run(self, function: str, *arguments: Any, ranks: int = 1) -> list[Any]:
        """Call `module:function` on each of the forked ranks; return the result of each."""
        group = self._fork(function, arguments, ranks, stays=False)
        try:
            return group.collect()
        finally:
            group.close()

    def _fork(
        self, function: str, arguments: tuple[Any, ...], ranks: int, *, stays: bool
    ) -> "ForkedGroup":
        if not self.ready:
            self.ready = receive(self.orders) == "ready"
        with tempfile.TemporaryDirectory() as folder, Listener(f"{folder}/calls") as listener:
            order = Order(
                caller=str(listener.address),
                port=_free_port(),
                ranks=ranks,
                function=function,
                arguments=arguments,
                stays=stays,
                environment=self.environment,
            )
            send(self.orders, order)
            connections = {}
            for _ in range(ranks):
                connection = listener.accept()
                connections[connection.recv()] = connection
        return ForkedGroup([connections[rank] for rank in sorted(connections)])

    def stop(self) -> None:
        """End the zygote."""
        send(self.orders, None)
        self.process.wait(timeout=30)


class SharedWorkers(ForkedWorkers):
    """The groups that are forked from a zygote that others use too."""

    def __init__(self, path: str) -> None:
        """Connect to the socket of `python forked_workers.py SOCKET`."""
        self.orders = Client(path, family="AF_UNIX")
        self.ready = False
        self.environment = {}

    def stop(self) -> None:
        """End what serves this process alone."""
        send(self.orders, None)
        self.orders.close()


def _of_cpu_worker() -> dict[str, str]:
    return PLATFORMS["cpu"].worker_environment(workers=2, one_machine=True)


def _free_port() -> int:
    """Return a port below those that systems give to connections, which none takes meanwhile."""
    draw = SystemRandom()
    while True:
        port = draw.randrange(16_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass(frozen=True)
class ForkedCall:
    """A running method of ranks; the calls of one rank are awaited in order."""

    ranks: Sequence[Connection]
    answering: Collection[int] | None = None

    def wait(self) -> list[Any]:
        results = []
        for place, rank in enumerate(self.ranks):
            kind, value = receive(rank)
            assert kind == "result", value
            results.append(value if self.answering is None or place in self.answering else None)
        return results


class ForkedGroup:
    """Calls all ranks at once and waits for all of them."""

    def __init__(self, ranks: Sequence[Connection]) -> None:
        self.ranks = ranks

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        return self.begin(method, arguments, answering).wait()

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> "ForkedCall":
        """Call ranks from the first on; `wait`, or `collect` for all of them, must follow."""
        called = self.ranks[first : first + len(arguments)]
        for rank, given in zip(called, arguments, strict=True):
            send(rank, (method, given))
        return ForkedCall(called, answering)

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self.call(method, [arguments] * len(self.ranks))

    def collect(self) -> list[Any]:
        return ForkedCall(self.ranks).wait()

    def stop(self) -> None:
        for rank in self.ranks:
            send(rank, None)
        self.close()

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


if __name__ == "__main__":
    os.environ.update(_of_cpu_worker())
    os.execv(sys.executable, [sys.executable, str(ZYGOTE), *sys.argv[1:]])
