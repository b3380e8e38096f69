"""A server whose answers end early, stall or arrive slowly, for tests of every client."""

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

DRIP_SECONDS = 0.02
"""Between two bytes: far below any limit of a single read."""
_MOST_SECONDS = 10.0
"""Longest fault, where a client waits for it to end."""


@dataclass
class Fault:
    """Sends what it likes in place of an answer, and counts who asked."""

    act: Callable[[socket.socket, int, threading.Event], None]
    """Takes the connection, the status and the event that ends the test."""
    status: int = 200
    asked: int = 0
    over: threading.Event = field(default_factory=threading.Event)


def _begin(connection: socket.socket, status: int, *headers: str) -> None:
    lines = [f"HTTP/1.1 {status} Said", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode())


def _drip(connection: socket.socket, over: threading.Event) -> None:
    ends = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < ends and not over.wait(DRIP_SECONDS):
        connection.sendall(b" ")


def reset(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Announce 100 bytes, send 3, and reset the connection."""
    del over
    _begin(connection, status, "Content-Length: 100")
    connection.sendall(b"0.5")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def cut(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Announce 100 bytes, send 3, and close the connection."""
    del over
    _begin(connection, status, "Content-Length: 100")
    connection.sendall(b"0.5")


def stall(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Announce 100 bytes, send 3, and nothing more."""
    _begin(connection, status, "Content-Length: 100")
    connection.sendall(b"0.5")
    over.wait(_MOST_SECONDS)


def broken_chunk(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Announce a chunk by what is no size."""
    del over
    _begin(connection, status, "Transfer-Encoding: chunked")
    connection.sendall(b"3\r\n0.5\r\nzz\r\n0.7\r\n")


def half_a_chunk(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Announce a chunk of 100 bytes, send 3, and close the connection."""
    del over
    _begin(connection, status, "Transfer-Encoding: chunked")
    connection.sendall(b"64\r\n0.5")


def drip_header(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Send a header that never ends, a byte at a time."""
    connection.sendall(f"HTTP/1.1 {status} Said\r\nX-Endless: ".encode())
    _drip(connection, over)


def drip_body(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Send a text that never ends, a byte at a time."""
    _begin(connection, status)
    _drip(connection, over)


def drip_announced_body(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Send a text of a known length, a byte at a time."""
    _begin(connection, status, "Content-Length: 100000")
    _drip(connection, over)


def no_http(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Answer in another protocol."""
    del status, over
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def silence(connection: socket.socket, status: int, over: threading.Event) -> None:
    """Close the connection without a byte."""
    del connection, status, over


@contextmanager
def breaking(fault: Fault) -> Iterator[str]:
    """Listen at an address with a fault; yields the address."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            fault.asked += 1
            with suppress(OSError):
                fault.act(self.connection, fault.status, fault.over)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            fault.over.set()
            server.shutdown()
