"""Requests to a server: with a token, a time limit, and another try where nobody answered."""

import json
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from mindrl.errors import WorkerDiedError

_PAUSES_SECONDS = (0.2, 1.0)
"""Before the second try, and before the third and last."""
_HEALTH_SECONDS = 5.0
_BUSY = frozenset({502, 503, 504})
"""Answers of whoever stands before a server that is not there."""
# A server is addressed by itself, whatever proxy the environment names.
_OPENER = build_opener(ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class ServerClient:
    """Asks one server."""

    url: str
    """Judged by `unfit_server`."""
    token: str
    name: str
    """Of the server, in errors."""

    def post(
        self, path: str, body: Any = None, *, seconds: float, again: bool = False
    ) -> dict[str, Any]:
        """Ask, and return the answer; `again` asks up to three times where there is none.

        Then the server may have been asked more than once, and the one answer counts. `seconds` is
        the limit of each try.

        Raises:
            WorkerDiedError: Nobody answered in time, or the server refused.
        """
        for pause in (*_PAUSES_SECONDS, None) if again else (None,):
            try:
                return self._once(path, body, seconds, "POST")
            except HTTPError as error:
                text = error.read().decode(errors="replace")[:300]
                if error.code not in _BUSY or pause is None:
                    refused = f"{self._said(path)}: HTTP {error.code} {text}"
                    raise WorkerDiedError(refused) from error
            except (URLError, OSError, HTTPException) as error:
                if pause is None:
                    raise WorkerDiedError(f"{self._said(path)}: {error}") from error
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def is_up(self) -> bool:
        """Say whether the server is ready to be asked."""
        try:
            self._once("/health", None, _HEALTH_SECONDS, "GET")
        except (OSError, HTTPException):
            return False
        return True

    def _once(self, path: str, body: Any, seconds: float, method: str) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.token}",
        }
        url = self.url.rstrip("/") + path
        request = Request(url, data, headers, method=method)  # noqa: S310 - judged above
        with _OPENER.open(request, timeout=seconds) as reply:
            text = reply.read()
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def _said(self, path: str) -> str:
        return f"{self.name} at {self.url} gave no answer to {path}"
