"""Addresses that the servers of a run may have. Imports no torch."""

import ipaddress
from urllib.parse import urlsplit


def unfit_server(address: str, *, allow_remote: bool) -> str:
    """Return why a run must not use a server at an address; empty if it may."""
    host = _host(address)
    if host is None:
        return "must be a URL such as http://127.0.0.1:8000"
    if allow_remote or is_loopback(host):
        return ""
    return (
        "is not a loopback address, and anyone who can reach the server can control it; "
        "set generate_config.servers_are_remote=true if only machines of the run can "
        "reach it"
    )


def _host(address: str) -> str | None:
    """Return the host of a URL; None if the address is no URL of a server."""
    try:
        parts = urlsplit(address)
        is_legal = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return None
    return parts.hostname or None if is_legal else None


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
