"""The page of runs that go on, served to who has the token."""

import logging
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mindrl.errors import MindrlError, OutputError
from mindrl.observability.output_files import json_text
from mindrl.report.page import page, page_data

logger = logging.getLogger(__name__)


class PageServer(ThreadingHTTPServer):
    """Answers `/` with the page and `/data.json` with what is in it, as of now.

    Raises:
        OutputError: It cannot listen there.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[Path], *, host: str, port: int) -> None:
        """Listen; port 0 takes a free one."""
        self.runs, self.token = runs, secrets.token_urlsafe()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(
                f"--host {host} --port {port} cannot be listened at: {reason}"
            ) from error

    @property
    def url(self) -> str:
        """Return the address of the page, the token in it."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/?token={self.token}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """Answer whoever has the token."""
        asked = urlsplit(self.path)
        [token] = parse_qs(asked.query).get("token", [""])[:1]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "the token is missing or wrong\n")
        elif asked.path == "/":
            self._answer(HTTPStatus.OK, "text/html", page(None))
        elif asked.path == "/data.json":
            try:
                self._answer(
                    HTTPStatus.OK, "application/json", json_text(page_data(self.server.runs))
                )
            except MindrlError as error:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is / and /data.json\n")

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Keep quiet: a line for each question would hide the address."""
        logger.debug(format, *arguments)
