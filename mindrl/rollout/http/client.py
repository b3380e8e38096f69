"""Requests to a server: with a token, a time limit, and retries if there is no answer."""

import json
import time
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.request import OpenerDirector, ProxyHandler, Request

from mindrl.errors import AnswerError, WorkerDiedError
from mindrl.platform.http_exchange import HttpStatusError, OpenSockets, exchange, timed_opener
from mindrl.rollout.http.answers import read

_PAUSES_SECONDS = (0.2, 1.0)
"""Pauses before the second and the third try."""
_HEALTH_SECONDS = 5.0
_BUSY = frozenset({502, 503, 504})
"""Status codes of a proxy whose server is not available."""
_Form = TypeVar("_Form")


@dataclass(frozen=True, kw_only=True)
class ServerClient:
    """Sends requests to one server."""

    url: str
    """Checked by `unfit_server`."""
    token: str
    name: str
    """Name of the server in errors."""
    health_path: str = "/health"
    most_bytes: int = 256 << 20
    """Maximum bytes of an answer: a million tokens need less."""
    sockets: OpenSockets = field(default_factory=OpenSockets, init=False, compare=False, repr=False)

    def post(self, path: str, body: Any = None, *, seconds: float, again: bool = False) -> bytes:
        """Return the server's answer; with `again`, try up to three times.

        The server may then have answered more than once; one answer is used. `seconds` limits each
        try, from connecting to the last byte. A try fails if the server is not reached, the answer
        is late or incomplete, or its status is 502, 503 or 504.

        Raises:
            WorkerDiedError: No try was answered, the server answered with another status, or the
                client is closed.
        """
        for pause in (*_PAUSES_SECONDS, None) if again else (None,):
            try:
                return self._once(path, body, seconds, "POST")
            except (OSError, HTTPException) as error:
                refuses = isinstance(error, HttpStatusError) and error.status not in _BUSY
                if refuses or pause is None or self.sockets.is_closed:
                    said = f"{self.name} at {self.url} did not respond to {path}"
                    raise WorkerDiedError(f"{said}: {error}") from error
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def request(
        self, form: type[_Form], path: str, body: Any, *, seconds: float, again: bool = False
    ) -> _Form:
        """Post a request and parse the answer.

        Raises:
            AnswerError: The answer has another form.
            WorkerDiedError: As in `post`.
        """
        return self.parsed(form, path, self.post(path, body, seconds=seconds, again=again))

    def parsed(self, form: type[_Form], path: str, text: bytes) -> _Form:
        """Parse an answer.

        Raises:
            AnswerError: It has another form.
        """
        try:
            return read(form, text)
        except ValueError as error:
            raise self.garbage(path, f"{error}; it starts with {text[:60]!r}") from error

    def garbage(self, path: str, what: str) -> AnswerError:
        """Return the error for an invalid answer."""
        return AnswerError(f"{self.name} at {self.url}: invalid response to {path}: {what}")

    def is_up(self) -> bool:
        """Return whether the server is ready for requests."""
        try:
            self._once(self.health_path, None, _HEALTH_SECONDS, "GET")
        except (OSError, HTTPException):
            return False
        return True

    def close(self) -> None:
        """End open requests in any thread: the server drops them. Further requests fail."""
        self.sockets.close()

    @cached_property
    def _opener(self) -> OpenerDirector:
        # Servers are addressed directly, even if the environment names a proxy.
        return timed_opener(ProxyHandler({}), sockets=self.sockets)

    def _once(self, path: str, body: Any, seconds: float, method: str) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.token}",
        }
        url = self.url.rstrip("/") + path
        request = Request(url, data, headers, method=method)  # noqa: S310 - checked before
        return exchange(self._opener, request, seconds=seconds, most_bytes=self.most_bytes)
