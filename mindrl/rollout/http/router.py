"""vllm-router in front of a run's servers: starts it, sets its servers, restarts and ends it.

Tested with vllm-router 0.1.17 (the extra `router`). A server is registered only while it has the
run's newest weights: no request is sent to one that receives weights, or has lost them.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from mindrl.errors import WorkerDiedError
from mindrl.observability.logs import tail
from mindrl.platform.rendezvous import listen
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.answers import Answer
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.vllm_server import VllmServer

_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_REQUEST_SECONDS = 30.0
_LOOK_SECONDS = 0.1


class VllmRouter:
    """A process that ends with the run; restarted if it has ended or does not answer."""

    def __init__(self, log: Path, token: str, request_seconds: float) -> None:
        """Start it without servers.

        Raises:
            WorkerDiedError: It does not start.
        """
        self.log, self.request_seconds = log, request_seconds
        with listen(_HOST) as free, listen(_HOST) as for_metrics:
            self.port, self.metrics_port = (each.getsockname()[1] for each in (free, for_metrics))
        url = f"http://{_HOST}:{self.port}"
        self.client = ServerClient(
            url=url, token=token, name="vllm-router", health_path="/liveness"
        )
        self.members: dict[str, ServerClient] = {}
        """Registered servers, by address."""
        self.process: subprocess.Popen[bytes] | None = None
        self.lock = Lock()
        with self.lock:
            self._ensure()

    def add(self, server: ServerClient) -> None:
        """Register a server.

        Raises:
            WorkerDiedError: The router does not accept it.
        """
        with self.lock:
            self._ensure()
            self._notify("add", server.url)
            self.members[server.url] = server

    def remove(self, server: ServerClient) -> None:
        """Unregister a server; a router that has ended has forgotten it."""
        with self.lock:
            if self.members.pop(server.url, None) is not None:
                with suppress(WorkerDiedError):
                    self._notify("remove", server.url)

    def servers(self) -> list[ServerClient]:
        """Return the registered servers."""
        with self.lock:
            return [*self.members.values()]

    def close(self) -> None:
        """End the process."""
        with self.lock:
            self._end()

    def _notify(self, what: str, url: str) -> None:
        path = f"/{what}_worker?url={quote(url, safe='')}"
        self.client.post(path, seconds=_REQUEST_SECONDS)

    def _ensure(self) -> None:
        """Start or restart it, with its servers, unless it answers."""
        if self.process is not None and self.process.poll() is None and self.client.is_up():
            return
        self._end()
        self._start()
        for url in self.members:
            self._notify("add", url)

    def _start(self) -> None:
        guard = [sys.executable, "-m", "mindrl.platform.guard", "--while", str(os.getpid())]
        options = {
            "host": _HOST,
            "port": self.port,
            "prometheus-host": _HOST,
            "prometheus-port": self.metrics_port,
            # Responses to the same prompt share its keys and values.
            "policy": "cache_aware",
            "health-check-interval-secs": 1,
            "health-failure-threshold": 2,
            "request-timeout-secs": int(self.request_seconds),
        }
        command = [*guard, sys.executable, "-m", "vllm_router.launch_router"]
        command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        ends = time.monotonic() + _START_SECONDS
        while not self.client.is_up():
            if self.process.poll() is not None or time.monotonic() > ends:
                self._end()
                said = f"last lines of {self.log}:\n{tail(self.log, lines=10)}"
                raise WorkerDiedError(f"vllm-router did not start; {said}")
            time.sleep(_LOOK_SECONDS)

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            process.wait()


@dataclass(frozen=True, kw_only=True)
class RoutedServer:
    """A server behind a router: requests go to any free server, commands to this one.

    See `EngineServer`. An answer may come from another server; it has the same weights, or is
    refused.
    """

    own: VllmServer
    routed: VllmServer
    """The same API at the router's address."""
    router: VllmRouter

    @property
    def client(self) -> ServerClient:
        """Client of the server itself."""
        return self.own.client

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Let the server's ranks join a link with the training ranks."""
        self.own.join_link(address, replica, generation)

    def receive_weights(self, version: int) -> None:
        """Let the server receive weights; during that, and after a failure, it gets no requests."""
        self.router.remove(self.client)
        self.own.receive_weights(version)
        self.router.add(self.client)

    def generate(self, request: Request, sampling: Sampling, name: str, seconds: float) -> Answer:
        """Request a response from any server."""
        return self.routed.generate(request, sampling, name, seconds)

    def take_back(self, names: list[str]) -> None:
        """Let all servers answer open requests with the tokens so far: any may have them."""
        for server in self.router.servers():
            with suppress(WorkerDiedError):
                self.own.take_back_from(server, names)

    def close(self) -> None:
        """End open requests, and stop sending requests to the server."""
        self.routed.close()
        self.own.close()
        self.router.remove(self.client)
