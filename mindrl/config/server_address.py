"""Addresses that the servers of a run may have. Imports no torch."""

import ipaddress
from urllib.parse import SplitResult, urlsplit

_EXAMPLE = "http://127.0.0.1:8000"


def unfit_server(address: str, *, allow_remote: bool) -> str:
    """Return why a run must not use a server at an address; empty if it may."""
    parts = _parts(address)
    if parts is None:
        return f"must be a URL such as {_EXAMPLE}"
    written = parts.scheme + address[len(parts.scheme) :].rstrip("/")
    if written != (legal := nearest_address(address)):
        return f"must have no user, query, fragment or /v1 at its end: use {legal}"
    if allow_remote or is_loopback(str(parts.hostname)):
        return ""
    return (
        "is not a loopback address, and anyone who can reach the server can control it; "
        "set generate_config.servers_are_remote=true if only machines of the run can "
        "reach it"
    )


def nearest_address(address: str) -> str:
    """Return the scheme, host, port and prefix of a URL; an example if it is no URL of a server.

    A gateway may serve several servers under prefixes; `/v1` is the prefix of the OpenAI API alone.
    """
    parts = _parts(address)
    if parts is None:
        return _EXAMPLE
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{prefix}"


def _parts(address: str) -> SplitResult | None:
    """Split a URL; None if the address is no URL of a server, or no DNS name has its host."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
        is_legal = parts.scheme in ("http", "https") and parts.port != 0
        return parts if is_legal and host.isascii() and host.encode("idna") else None
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
