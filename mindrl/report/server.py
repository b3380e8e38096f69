"""Server of the page of running runs, protected by a token."""

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mindrl.errors import MindrlError, OutputError
from mindrl.observability.output_files import json_text
from mindrl.report.page import of_all_runs, page
from mindrl.report.run_state import RunState
from mindrl.report.sample_search import SampleSearch

logger = logging.getLogger(__name__)

_LONGEST_QUESTION = 1 << 20
"""Maximum bytes of a query about samples."""


class PageServer(ThreadingHTTPServer):
    """Serves the page at `/`, new data at `/data.json`, and samples at `/samples.json`.

    The state of the runs is held once for all viewers. Each viewer sends its position and gets what
    is newer; without a position, or with one of files that were replaced, it gets everything.
    Samples are read from the files on request.

    Raises:
        OutputError: A folder is not a run's, or the server cannot listen there.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[Path], *, host: str, port: int) -> None:
        """Listen; port 0 selects a free one."""
        self.runs, self.token = [RunState(run) for run in runs], secrets.token_urlsafe()
        self.session, self.lock = secrets.token_hex(4), Lock()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise OutputError(
                f"--host {host} --port {port} cannot listen on this address: {reason}"
            ) from error

    @property
    def url(self) -> str:
        """Address of the page, including the token."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={self.token}"

    def read_ahead(self) -> None:
        """Start reading the runs in a thread, so that the first viewer waits less."""
        Thread(target=self.news, args=("",), daemon=True).start()

    def news(self, position: str) -> dict[str, Any]:
        """Return the data above a viewer's position, and the new position.

        Raises:
            OutputError: A file cannot be read.
        """
        with self.lock:
            for run in self.runs:
                run.update()
            files = f"{self.session}-{'.'.join(str(run.generation) for run in self.runs)}"
            known = self._known(position, files)
            news = {"runs": [run.since(at) for run, at in zip(self.runs, known, strict=True)]}
            if not any(known):
                news |= of_all_runs(self.runs) | {"whole": True}
            new = ".".join(str(run.position) for run in self.runs)
            return {**news, "position": f"{files}-{new}", "written": time.time()}

    def samples(self, query: Any) -> dict[str, Any]:
        """Return samples that match a query.

        Raises:
            OutputError: A file cannot be read.
            ValueError, TypeError, KeyError: The query is invalid.
        """
        with self.lock:
            return SampleSearch(self.runs, query).answer()

    def _known(self, position: str, files: str) -> list[int]:
        """Return a viewer's position for each run; 0 if it needs everything."""
        of_files, _, numbers = position.rpartition("-")
        known = [int(each) for each in numbers.split(".") if each.isdigit()]
        is_known = of_files == files and len(known) == len(self.runs)
        return known if is_known else [0] * len(self.runs)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """Answer requests with the token."""
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if not self._is_known(query):
            return
        if url.path == "/":
            self._answer(HTTPStatus.OK, "text/html", page(None))
        elif url.path == "/data.json":
            [position] = query.get("since", [""])[:1]
            self._answer_json(lambda: self.server.news(position))
        else:
            text = "not found; GET / or /data.json, POST /samples.json\n"
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", text)

    def do_POST(self) -> None:
        """Answer a query about samples."""
        url = urlsplit(self.path)
        if not self._is_known(parse_qs(url.query)):
            return
        length = self.headers.get("Content-Length", "")
        if url.path != "/samples.json":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "not found; POST /samples.json\n")
        elif not length.isdigit() or int(length) > _LONGEST_QUESTION:
            text = f"the query needs a Content-Length of at most {_LONGEST_QUESTION}\n"
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", text)
        else:
            content = self.rfile.read(int(length))
            self._answer_json(lambda: self.server.samples(json.loads(content)))

    def _is_known(self, query: dict[str, list[str]]) -> bool:
        """Return whether a request has the token; answer requests without it."""
        [token] = query.get("token", [""])[:1]
        if secrets.compare_digest(token.encode(), self.server.token.encode()):
            return True
        self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "the token is missing or wrong\n")
        return False

    def _answer_json(self, found: Callable[[], object]) -> None:
        try:
            self._answer(HTTPStatus.OK, "application/json", json_text(found()))
        except MindrlError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error}\n")
        except (ValueError, TypeError, KeyError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", f"bad query: {error!r}\n")

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
        """Log requests at debug level only: lines on the terminal would hide the address."""
        logger.debug(format, *arguments)
