"""Addresses that the servers of a run may have. Imports no torch."""

import ipaddress
from urllib.parse import SplitResult, urlsplit


def unfit_server(address: str, *, allow_remote: bool) -> str:
    """Return why a run must not use a server at an address; empty if it may."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or not _has_legal_port(parts):
        return "must be a URL such as http://127.0.0.1:8000"
    if allow_remote or is_loopback(parts.hostname):
        return ""
    return (
        "is not a loopback address, and anyone who can reach the server can control it; "
        "set generate_config.servers_are_remote=true if only machines of the run can "
        "reach it"
    )


def _has_legal_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
