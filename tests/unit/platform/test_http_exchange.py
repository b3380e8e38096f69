"""Exchanges over TLS. Faults of servers without it: tests/unit/rollout/test_server_faults.py."""

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from pathlib import Path
from queue import Queue
from threading import Thread
from urllib.request import ProxyHandler, Request

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mindrl.platform.http_exchange import OpenSockets, exchange, timed_opener

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n0.5"


def _with_certificate(folder: Path) -> Path:
    """Write a key and its certificate for localhost into a file, which is returned."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1))
    builder = builder.not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (file := folder / "localhost.pem").write_bytes(
        text + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLSocket]:
    """Yield a listening socket whose certificate clients trust."""
    file = _with_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True) as found:
        yield found


def test_closing_a_client_ends_its_exchanges_over_tls_and_refuses_others(
    listener: ssl.SSLSocket,
) -> None:
    asked, left = Queue[bytes](), Queue[bytes]()

    def serve() -> None:
        for answer in (_ANSWER, b""):
            with listener.accept()[0] as connection:
                connection.settimeout(20)
                asked.put(connection.recv(1000))
                connection.sendall(answer)
                if not answer:
                    left.put(connection.recv(1))

    Thread(target=serve, daemon=True).start()
    sockets = OpenSockets()
    opener = timed_opener(ProxyHandler({}), sockets=sockets)
    request = Request(f"https://localhost:{listener.getsockname()[1]}/")

    def ask() -> bytes:
        return exchange(opener, request, seconds=20, most_bytes=100)

    assert ask() == b"0.5"
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask)
        assert asked.get().startswith(b"GET / ")
        assert asked.get().startswith(b"GET / ")
        sockets.close()
        with pytest.raises((OSError, HTTPException)):
            answer.result()
    assert left.get() == b""
    with pytest.raises(OSError, match="the client is closed"):
        ask()


def test_closing_a_client_ends_a_handshake_that_the_server_does_not_answer() -> None:
    said, left = Queue[bytes](), Queue[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                said.put(connection.recv(4096))
                left.put(connection.recv(4096))

        Thread(target=serve, daemon=True).start()
        sockets = OpenSockets()
        opener = timed_opener(ProxyHandler({}), sockets=sockets)
        request = Request(f"https://localhost:{listener.getsockname()[1]}/")
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(exchange, opener, request, seconds=5, most_bytes=100)
            # The first byte of a TLS record with a handshake.
            assert said.get()[0] == 22
            sockets.close()
            with pytest.raises(OSError, match="EOF occurred"):
                answer.result()
    assert left.get() == b""
