"""Requests to a server: with a token, a time limit, and another try where nobody answered."""

import json
import time
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from mindrl.errors import AnswerError, WorkerDiedError
from mindrl.rollout.http.answers import read

_PAUSES_SECONDS = (0.2, 1.0)
"""Before the second try, and before the third and last."""
_HEALTH_SECONDS = 5.0
_BUSY = frozenset({502, 503, 504})
"""Answers of whoever stands before a server that is not there."""
_MOST_BYTES = 256 << 20
"""Of an answer: a million tokens have less."""
_CHUNK_BYTES = 1 << 20
_Form = TypeVar("_Form")


class _StayHere(HTTPRedirectHandler):
    """Takes a redirection for a refusal: nobody else gets the token."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return none."""


# A server is addressed by itself, whatever proxy the environment names.
_OPENER = build_opener(ProxyHandler({}), _StayHere())


@dataclass(frozen=True, kw_only=True)
class ServerClient:
    """Asks one server."""

    url: str
    """Judged by `unfit_server`."""
    token: str
    name: str
    """Of the server, in errors."""
    health_path: str = "/health"

    def post(self, path: str, body: Any = None, *, seconds: float, again: bool = False) -> bytes:
        """Ask, and return the answer; `again` asks up to three times where there is none.

        Then the server may have been asked more than once, and the one answer counts. `seconds` is
        the limit of each try, to the last byte.

        Raises:
            WorkerDiedError: Nobody answered in time, or the server refused.
        """
        for pause in (*_PAUSES_SECONDS, None) if again else (None,):
            try:
                return self._once(path, body, seconds, "POST")
            except HTTPError as error:
                text = error.read(300).decode(errors="replace")
                if error.code not in _BUSY or pause is None:
                    refused = f"{self._said(path)}: HTTP {error.code} {text}"
                    raise WorkerDiedError(refused) from error
            except (URLError, OSError, HTTPException) as error:
                if pause is None:
                    raise WorkerDiedError(f"{self._said(path)}: {error}") from error
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def ask(
        self, form: type[_Form], path: str, body: Any, *, seconds: float, again: bool = False
    ) -> _Form:
        """Ask, and read the answer as a form.

        Raises:
            AnswerError: It is another.
            WorkerDiedError: As of `post`.
        """
        text = self.post(path, body, seconds=seconds, again=again)
        try:
            return read(form, text)
        except ValueError as error:
            raise self.garbage(path, f"{error}; it begins with {text[:60]!r}") from error

    def garbage(self, path: str, what: str) -> AnswerError:
        """Say that an answer cannot be one."""
        return AnswerError(f"{self.name} at {self.url} answered {path} with garbage: {what}")

    def is_up(self) -> bool:
        """Say whether the server is ready to be asked."""
        try:
            self._once(self.health_path, None, _HEALTH_SECONDS, "GET")
        except (OSError, HTTPException):
            return False
        return True

    def _once(self, path: str, body: Any, seconds: float, method: str) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.token}",
        }
        url, ends = self.url.rstrip("/") + path, time.monotonic() + seconds
        request = Request(url, data, headers, method=method)  # noqa: S310 - judged above
        with _OPENER.open(request, timeout=seconds) as reply:
            return _whole(reply, ends)

    def _said(self, path: str) -> str:
        return f"{self.name} at {self.url} gave no answer to {path}"


def _whole(reply: HTTPResponse, ends: float) -> bytes:
    """Read an answer, which may come byte by byte, or never end."""
    text = bytearray()
    while chunk := reply.read1(_CHUNK_BYTES):
        text += chunk
        if len(text) > _MOST_BYTES:
            raise HTTPException(f"the answer has more than {_MOST_BYTES >> 20} MiB")
        if time.monotonic() > ends:
            raise TimeoutError("timed out before its end")
    if reply.length:
        raise HTTPException(f"the answer breaks off {reply.length} bytes before its end")
    return bytes(text)
