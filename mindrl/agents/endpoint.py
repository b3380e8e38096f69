"""HTTP server on the loopback address in front of the policy, for the agents of a run.

Each conversation has a session with an address and an API key of its own. Requests are sampled with
the run's parameters; a header of the answer names the values that were ignored.
"""

import json
import logging
import re
import select
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from mindrl.agents.answers import error_body
from mindrl.agents.record import training_trace
from mindrl.agents.routes import AgentRoutes, in_form, parameters_of
from mindrl.agents.sessions import RefusedError, Session
from mindrl.environments.bounded_json import bounded_json

logger = logging.getLogger(__name__)

IGNORED_HEADER = "X-Mindrl-Ignored"
"""Header of an answer about values of the request that were not used."""
_PATH = re.compile(r"/sessions/([0-9a-f]{1,64})(/[a-z0-9/_]+)")
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_GENERATE = "/inference/v1/generate"
_TOKENIZE = ("/tokenize", "/v1/tokenize")
_IDLE_SECONDS = 600.0
"""Limit of the wait for bytes of a request."""


class AgentEndpoint(ThreadingHTTPServer):
    """Serves sessions on a free port in a thread, until `close`."""

    daemon_threads = True
    block_on_close = False
    # Agents of a step begin at the same time.
    request_queue_size = 1024

    def __init__(self, routes: AgentRoutes) -> None:
        """Start listening."""
        self.routes = routes
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = Thread(target=self.serve_forever, name="agents", daemon=True)
        self._thread.start()

    def base_url(self, session: Session) -> str:
        """Return the base address for a client of OpenAI."""
        return f"http://127.0.0.1:{self.server_address[1]}/sessions/{session.name}/v1"

    def close(self) -> None:
        """Stop listening; open requests end with their sessions."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a request, unless its connection was lost."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: AgentEndpoint
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """Answer with the list of models, or the calls so far."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer all other routes."""
        self._answer(self._post)

    def _get(self) -> None:
        session, path = self._session()
        if path == "/training_trace":
            self._send(200, training_trace(session.name, session.calls()))
        elif path == "/v1/models":
            self._send(200, self.server.routes.models())
        else:
            raise RefusedError(404, f"no route GET {path}", code="not_found")

    def _post(self) -> None:
        # Read first: an unread body would be taken for the next request.
        content = self._content()
        session, path = self._session()
        body, routes = _parsed(content), self.server.routes
        if path in _TOKENIZE:
            self._send(200, routes.tokenize(body))
            return
        answers = {
            _CHAT: routes.chat,
            _COMPLETIONS: routes.completion,
            _GENERATE: routes.generate,
        }
        if path not in answers:
            raise RefusedError(404, f"no route POST {path}", code="not_found")
        asked = parameters_of(body) if path == _GENERATE else body
        ignored = routes.sampling.ignored(asked)
        found = answers[path](session, body, self._is_awaited)
        kind, stream = in_form(found, body)
        headers = {"Content-Type": kind} | ({IGNORED_HEADER: ignored} if ignored else {})
        self._send(200, found if stream is None else stream, headers)

    def _answer(self, answer: Callable[[], None]) -> None:
        with suppress(ConnectionError, TimeoutError):
            try:
                answer()
            except RefusedError as error:
                self._send(error.status, error_body(error))

    def _session(self) -> tuple[Session, str]:
        """Return the session of the address, and the rest of it."""
        found = _PATH.fullmatch(self.path.partition("?")[0])
        if found is None:
            need = "an address begins with /sessions/NAME/"
            raise RefusedError(404, f"no route {self.path[:200]!r}; {need}", code="not_found")
        scheme, _, secret = self.headers.get("Authorization", "").partition(" ")
        secret = secret.strip() if scheme.lower() == "bearer" else ""
        return self.server.routes.sessions.find(found[1], secret), found[2]

    def _content(self) -> bytes:
        """Read the body of a request within its limit."""
        given, most = self.headers.get("Content-Length", ""), self.server.routes.limits.body_bytes
        self.close_connection = True
        if not (given.isascii() and given.isdigit()):
            raise RefusedError(411, "the request needs a Content-Length")
        if len(given) > 18 or int(given) > most:
            raise RefusedError(413, f"the request has more than {most} bytes")
        content = self.rfile.read(int(given))
        if len(content) < int(given):
            raise ConnectionResetError("the request has ended too early")
        self.close_connection = self.headers.get("Connection", "").lower() == "close"
        return content

    def _is_awaited(self) -> bool:
        """Return whether the client is still connected."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        if not poll.poll(0):
            return True
        with suppress(OSError):
            return bool(self.connection.recv(1, socket.MSG_PEEK))
        return False

    def _send(
        self,
        status: int,
        answer: Mapping[str, Any] | bytes,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        given = {"Content-Type": "application/json"} | dict(headers or {})
        self.send_response(status)
        for name, value in given.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Log requests at debug level."""
        logger.debug(format, *arguments)


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        body = bounded_json(content, _no_constant)
    except ValueError as error:
        raise RefusedError(400, f"the body must be JSON: {error}") from error
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object")
    return body


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")
