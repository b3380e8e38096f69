"""A server with vLLM's routes that generates nothing, for tests of its clients."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.http.replica import HttpReplica
from mindrl.rollout.http.vllm_server import VllmServer

VOCABULARY = 100


class Answering(Protocol):
    """What a server says."""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        """Return status and answer, bytes as they are; None breaks the connection off."""


@dataclass
class Engine:
    """What the server says and does."""

    version: str = "4"
    breaks: int = 0
    """Connections of each request that end without an answer."""
    holds: bool = False
    """Answers wait until their requests are taken back."""
    refuses: bool = False
    transfer: str = ""
    """What a rank says of one."""
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    """Of methods of its workers."""
    asked: Counter[str] = field(default_factory=Counter)
    aborted: set[str] = field(default_factory=set)
    told: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        """Return status and answer; None breaks the connection off."""
        match path.partition("?")[0]:
            case "/inference/v1/generate":
                return self.drawn(body)
            case "/inference/v1/abort_requests":
                self.aborted |= set(body["request_ids"])
                self.told.set()
                return 200, {}
            case "/collective_rpc":
                self.calls.append((body["method"], body["args"]))
                return 200, {"results": [self.transfer]}
        return 200, {}

    def drawn(self, body: dict[str, Any]) -> tuple[int, Any] | None:
        name = body["request_id"]
        self.asked[name] += 1
        if self.refuses:
            return 400, {"error": "too long"}
        if self.asked[name] <= self.breaks:
            return None
        if self.holds:
            while f"generate-tokens-{name}" not in self.aborted:
                self.told.wait(0.05)
        seed = body["sampling_params"]["seed"]
        token_ids = [40 + seed] * 2 if self.holds else [40 + seed, 40 + seed, 1]
        choice = {
            "token_ids": token_ids,
            "logprobs": {"content": [{"token_id": each, "logprob": -0.5} for each in token_ids]},
            "finish_reason": "abort" if self.holds else "stop",
            "weight_versions": [{"version": self.version, "start": 0, "end": len(token_ids)}],
        }
        return 200, {"choices": [choice]}


@contextmanager
def listening(
    engine: Answering,
    seen: list[tuple[str, str]] | None = None,
    *,
    port: int = 0,
    token: str = "",
) -> Iterator[str]:
    """Listen at an address with what the engine says; notes paths and tokens, or asks for one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def do_POST(self) -> None:
            if seen is not None:
                seen.append((self.path, self.headers["Authorization"]))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if token and self.headers["Authorization"] != f"Bearer {token}":
                self.send_error(401)
                return
            said = engine.answer(self.path, json.loads(body) if body else {})
            if said is None:
                self.close_connection = True
                return
            text = said[1] if isinstance(said[1], bytes) else json.dumps(said[1]).encode()
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            # Whoever asked may have waited long enough.
            with suppress(BrokenPipeError):
                self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def replica_at(url: str) -> HttpReplica:
    """Return the replica behind a server, with weights of version 4."""
    client = ServerClient(url=url, token="secret", name="replica 2")
    server = VllmServer(client=client, control_seconds=5, configuration="the configuration")
    return HttpReplica(
        number=2,
        server=server,
        vocabulary=VOCABULARY,
        rows=4,
        answer_seconds=5,
        control_seconds=5,
        version=4,
    )


def advance_to_the_end(replica: HttpReplica, count: int) -> list[int]:
    """Advance until so many requests are whole; returns their places."""
    whole: list[int] = []
    while len(whole) < count:
        whole += replica.advance(8, [])
    return sorted(whole)
