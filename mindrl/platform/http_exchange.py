"""One HTTP request and its answer, within one time limit and one size limit.

`urllib` and `http.client` limit each read and write separately, so an answer that arrives byte by
byte outlasts any limit. Here one deadline bounds connecting, sending, headers and text. Only the
lookup of a host name is bounded by the system's resolver instead.
"""

import socket
import time
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from ssl import SSLContext
from threading import Lock
from typing import Any
from urllib.error import HTTPError
from urllib.request import (
    BaseHandler,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    build_opener,
)
from weakref import WeakSet

_CHUNK_BYTES = 1 << 20
_MOST_ERROR_BYTES = 300
"""Maximum length of an error's text, which a person reads."""


class HttpStatusError(OSError):
    """An answer with a status other than 2xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status} {text}".rstrip())
        self.status = status


class OpenSockets:
    """Sockets of a client's exchanges. Any thread may end all of them."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = Lock()
        self.is_closed = False

    def add(self, connection: socket.socket) -> None:
        """Add a socket before it blocks.

        Raises:
            OSError: The client is closed.
        """
        with self._lock:
            if self.is_closed:
                raise OSError("the client is closed")
            self._sockets.add(connection)

    def close(self) -> None:
        """End all exchanges, which raise OSError or HTTPException, and refuse further ones."""
        with self._lock:
            self.is_closed = True
            for each in self._sockets:
                # It may have ended already. `SSLSocket.shutdown` would remove the state of a
                # connection that another thread reads.
                with suppress(OSError):
                    socket.socket.shutdown(each, socket.SHUT_RDWR)


def timed_opener(*handlers: BaseHandler, sockets: OpenSockets | None = None) -> OpenerDirector:
    """Return an opener for `exchange` that refuses redirections: no other address gets a token.

    `handlers` replace those of their kind, such as `ProxyHandler({})`, which uses no proxy. Its
    exchanges end when `sockets` are closed.
    """
    return build_opener(_StayHere(), _TimedHandler(sockets or OpenSockets()), *handlers)


def exchange(opener: OpenerDirector, request: Request, *, seconds: float, most_bytes: int) -> bytes:
    """Send a request and return the complete text of the answer.

    Raises:
        HttpStatusError: The answer has a status other than 2xx.
        OSError, HTTPException: No complete answer arrived within the limits.
    """
    try:
        with opener.open(request, timeout=seconds) as reply:
            return _read_body(reply, most_bytes)
    except HTTPError as error:
        raise HttpStatusError(error.code, _error_text(error)) from error
    except TimeoutError as error:
        raise TimeoutError(f"timed out: no complete response within {seconds:g} s") from error


def _read_body(reply: HTTPResponse, most_bytes: int) -> bytes:
    text = bytearray()
    while chunk := reply.read1(_CHUNK_BYTES):
        text += chunk
        if len(text) > most_bytes:
            raise HTTPException(f"the response has more than {most_bytes} bytes")
    if reply.length:
        raise HTTPException(f"the response ended {reply.length} bytes too early")
    return bytes(text)


def _error_text(error: HTTPError) -> str:
    """Return the first bytes of an error's text, or why it cannot be read; never raises for it."""
    with error:
        try:
            return error.read(_MOST_ERROR_BYTES).decode(errors="replace")
        except (OSError, HTTPException) as broken:
            return f"(incomplete text: {broken!r})"


class _StayHere(HTTPRedirectHandler):
    """Handles a redirection as an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None."""


class _Timed(HTTPConnection):
    """A connection with one deadline, set by `timeout`, for everything that happens on it."""

    def __init__(self, *args: Any, sockets: OpenSockets, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sockets = sockets
        assert self.timeout is not None, "each request has a time limit"
        self._ends = time.monotonic() + self.timeout
        self.response_class = partial(_TimedResponse, ends=self._ends)  # type: ignore[assignment]
        self._create_connection = self._connected
        """Called by `HTTPConnection.connect`."""

    def send(self, data: Any) -> None:
        """Send before the deadline."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(_left(self._ends))
        super().send(data)

    def _connected(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """Connect to the first reachable address of a host before the deadline."""
        failed: OSError | None = None
        for family, kind, protocol, _name, place in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            try:
                self._sockets.add(connection)
                connection.settimeout(_left(self._ends))
                connection.connect(place)
                # For later operations, such as the TLS handshake.
                connection.settimeout(_left(self._ends))
            except OSError as error:
                connection.close()
                failed = error
            else:
                return connection
        raise failed or OSError(f"{address[0]} has no address")


class _TimedTls(_Timed, HTTPSConnection):
    """The same over TLS."""

    def connect(self) -> None:
        """Connect as `HTTPSConnection`, which offers no access to the socket of the handshake."""
        HTTPConnection.connect(self)
        context: SSLContext = self._context  # type: ignore[attr-defined]
        name: str = self._tunnel_host or self.host  # type: ignore[attr-defined]
        self.sock = context.wrap_socket(
            self.sock, server_hostname=name, do_handshake_on_connect=False
        )
        self._sockets.add(self.sock)
        self.sock.do_handshake()


class _TimedResponse(HTTPResponse):
    """Reads headers and text before `ends`, a time on the monotonic clock."""

    def __init__(self, sock: socket.socket, *args: Any, ends: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = BufferedReader(_Arriving(sock, self.fp.detach(), ends))


class _Arriving(RawIOBase):
    """A stream that reads from a socket until `ends`."""

    def __init__(self, sock: socket.socket, stream: RawIOBase, ends: float) -> None:
        self._sock, self._stream, self._ends = sock, stream, ends

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read bytes before the deadline."""
        self._sock.settimeout(_left(self._ends))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        """Close the stream and its socket."""
        self._stream.close()
        super().close()


class _TimedHandler(HTTPSHandler, HTTPHandler):
    def __init__(self, sockets: OpenSockets) -> None:
        super().__init__()
        self._sockets = sockets

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_Timed, sockets=self._sockets), req)

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_TimedTls, sockets=self._sockets), req)


def _left(ends: float) -> float:
    """Return the seconds left.

    Raises:
        TimeoutError: No time is left.
    """
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
