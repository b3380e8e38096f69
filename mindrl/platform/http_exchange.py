"""One HTTP request and its answer, within one time limit and one size.

`urllib` and `http.client` limit each read and write by itself, so that an answer which comes byte
by byte outlasts any limit. Here one deadline bounds connecting, sending, headers and text. The
lookup of a host name alone is bounded by the system's resolver.
"""

import socket
import time
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
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

_CHUNK_BYTES = 1 << 20
_MOST_ERROR_BYTES = 300
"""Of the text of an error, which a person reads."""


class HttpStatusError(OSError):
    """An answer with a status other than 2xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status} {text}".rstrip())
        self.status = status


def timed_opener(*handlers: BaseHandler) -> OpenerDirector:
    """Return an opener for `exchange`, which refuses redirections: no other address gets a token.

    `handlers` replace those of their kind, such as `ProxyHandler({})`, which asks no proxy.
    """
    return build_opener(_StayHere(), _TimedHttp(), _TimedHttps(), *handlers)


def exchange(opener: OpenerDirector, request: Request, *, seconds: float, most_bytes: int) -> bytes:
    """Send a request and return the text of the answer, to its last byte.

    Raises:
        HttpStatusError: The answer has a status other than 2xx.
        OSError, HTTPException: No answer came, or not the whole of it within the limits.
    """
    try:
        with opener.open(request, timeout=seconds) as reply:
            return _whole(reply, most_bytes)
    except HTTPError as error:
        raise HttpStatusError(error.code, _error_text(error)) from error
    except TimeoutError as error:
        raise TimeoutError(f"timed out: no whole answer within {seconds:g} s") from error


def _whole(reply: HTTPResponse, most_bytes: int) -> bytes:
    text = bytearray()
    while chunk := reply.read1(_CHUNK_BYTES):
        text += chunk
        if len(text) > most_bytes:
            raise HTTPException(f"the answer has more than {most_bytes} bytes")
    if reply.length:
        raise HTTPException(f"the answer breaks off {reply.length} bytes before its end")
    return bytes(text)


def _error_text(error: HTTPError) -> str:
    """Return the first bytes of an error's text: the status counts, also where they break off."""
    with error:
        try:
            return error.read(_MOST_ERROR_BYTES).decode(errors="replace")
        except (OSError, HTTPException) as broken:
            return f"(its text breaks off: {broken!r})"


class _StayHere(HTTPRedirectHandler):
    """Takes a redirection for a refusal."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return none."""


class _Timed(HTTPConnection):
    """A connection whose `timeout` bounds all that happens on it together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.timeout is not None, "a limit is given with each request"
        self._ends = time.monotonic() + self.timeout
        self.response_class = partial(_TimedResponse, ends=self._ends)  # type: ignore[assignment]
        self._create_connection = self._connected
        """What `HTTPConnection.connect` calls."""

    def send(self, data: Any) -> None:
        """Send within what is left of the time."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(_left(self._ends))
        super().send(data)

    def _connected(self, address: tuple[str, int], *_: Any) -> socket.socket:
        """Try each address of a host within what is left of the time."""
        failed: OSError | None = None
        for family, kind, protocol, _name, place in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM
        ):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(_left(self._ends))
                connection.connect(place)
                # Of what follows, such as the handshake of TLS.
                connection.settimeout(_left(self._ends))
            except OSError as error:
                connection.close()
                failed = error
            else:
                return connection
        raise failed or OSError(f"{address[0]} has no address")


class _TimedTls(HTTPSConnection, _Timed):
    """The same over TLS: `HTTPSConnection.connect` takes the connection of `_Timed`."""


class _TimedResponse(HTTPResponse):
    """Reads headers and text before a time on the monotonic clock."""

    def __init__(self, sock: socket.socket, *args: Any, ends: float, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = BufferedReader(_Arriving(sock, self.fp.detach(), ends))


class _Arriving(RawIOBase):
    """What comes through a socket, until a time."""

    def __init__(self, sock: socket.socket, stream: RawIOBase, ends: float) -> None:
        self._sock, self._stream, self._ends = sock, stream, ends

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Wait for bytes within what is left of the time."""
        self._sock.settimeout(_left(self._ends))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        """Close the stream, and the socket with it."""
        self._stream.close()
        super().close()


class _TimedHttp(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Timed, req)


class _TimedHttps(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_TimedTls, req)


def _left(ends: float) -> float:
    """Return the seconds that are left.

    Raises:
        TimeoutError: None are.
    """
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
