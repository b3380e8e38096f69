"""Addresses that the servers of a run may have. Imports no torch."""

import ipaddress
from urllib.parse import urlsplit


def unfit_server(address: str, *, allow_remote: bool) -> str:
    """Return why a run must not use a server at an address; empty if it may."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "must begin with http:// or https:// and name a host"
    if allow_remote or is_loopback(parts.hostname):
        return ""
    return (
        "is not on the loopback address: the control routes of a server take no token, so whoever "
        "reaches it commands it; generate_config.servers_are_remote=true says that only machines "
        "of the run do"
    )


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
