"""Limits, memory, network and disks of a machine; read without changing anything."""

import os
import resource
import shutil
import socket
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from mindrl.platform.host_memory import container_memory, text_of

_ANSWER_SECONDS = 5.0
_LOOPBACK = "127.0.0.1"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """Limits and memory; in bytes unless another unit is named."""

    open_files: int
    """Soft limit; `resource.RLIM_INFINITY` if unlimited, as for every limit here."""
    open_files_hard: int
    processes: int
    memory: int
    memory_available: int
    container_memory: int | None
    """Limit of the control group of this process; None if unlimited."""
    swap_used: int
    shared_memory: int | None
    """Free bytes in /dev/shm; None if it does not exist."""


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """Names, proxies and ports."""

    hostname: str
    hostname_address: str | None
    """None if the name has no address."""
    loopback_works: bool
    proxies: tuple[str, ...]
    """Variables of a proxy that programs would use for the loopback address too."""
    ephemeral_ports: range
    reserved_ports: tuple[range, ...]


@dataclass(frozen=True, kw_only=True)
class TokenFacts:
    """The token of a Ray cluster to join."""

    source: str | None
    """Variable or file that holds it; None without a token."""
    readable_by_others: bool


@dataclass(frozen=True, kw_only=True)
class DiskFacts:
    """A folder that a run writes to; it need not exist."""

    path: Path
    is_writable: bool
    free: int


def host_facts() -> HostFacts:
    """Return the limits and the memory as the kernel reports them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = psutil.virtual_memory()
    shared = Path("/dev/shm")  # noqa: S108 - no file is made there
    return HostFacts(
        open_files=soft,
        open_files_hard=hard,
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        memory=memory.total,
        memory_available=memory.available,
        container_memory=container_memory(),
        swap_used=psutil.swap_memory().used,
        shared_memory=shutil.disk_usage(shared).free if shared.is_dir() else None,
    )


def network_facts(environment: Mapping[str, str]) -> NetworkFacts:
    """Resolve this machine's name and try a connection to the loopback address."""
    hostname = socket.gethostname()
    address = None
    with suppress(OSError):
        address = socket.gethostbyname(hostname)
    kernel = Path("/proc/sys/net/ipv4")
    low, high = (text_of(kernel / "ip_local_port_range").split() or ["32768", "60999"])[:2]
    return NetworkFacts(
        hostname=hostname,
        hostname_address=address,
        loopback_works=_loopback_works(),
        proxies=loopback_proxies(environment),
        ephemeral_ports=range(int(low), int(high) + 1),
        reserved_ports=tuple(port_ranges(text_of(kernel / "ip_local_reserved_ports").strip())),
    )


def loopback_proxies(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the set variables that send requests to the loopback address to a proxy."""
    excepted = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    entries = {entry.strip() for entry in excepted.split(",")}
    if entries & {"*", _LOOPBACK, "127.0.0.0/8"}:
        return ()
    names = (spelling for name in _PROXIES for spelling in (name, name.upper()))
    return tuple(name for name in names if environment.get(name))


def port_ranges(text: str) -> Iterable[range]:
    """Parse ports in the kernel's format: 8080,60000-60031."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield range(int(first), int(last or first) + 1)


def token_facts(environment: Mapping[str, str]) -> TokenFacts:
    """Find the token in the places that Ray uses; its text is not read."""
    if environment.get("RAY_AUTH_TOKEN"):
        return TokenFacts(source="RAY_AUTH_TOKEN", readable_by_others=False)
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named or "~/.ray/auth_token").expanduser()
    with suppress(OSError):
        status = file.stat()
        if status.st_size:
            shared = bool(status.st_mode & (stat.S_IRGRP | stat.S_IROTH))
            return TokenFacts(source=str(file), readable_by_others=shared)
    return TokenFacts(source=None, readable_by_others=False)


def disk_facts(path: Path) -> DiskFacts:
    """Return the facts of a folder, or of its nearest existing parent."""
    place = path.absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    return DiskFacts(
        path=path,
        is_writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        free=shutil.disk_usage(there).free,
    )


def port_is_free(port: int) -> bool:
    """Return whether a program could listen on the port now, on all addresses."""
    try:
        # It sets SO_REUSEADDR, as servers do: a connection that has just ended does not count.
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def connection_error(host: str, port: int) -> str:
    """Return why a port of another machine cannot be reached; empty if it can."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        # The host cannot be encoded.
        return str(error)
    return ""


def _loopback_works() -> bool:
    try:
        with socket.create_server((_LOOPBACK, 0)) as server:
            return not connection_error(*server.getsockname())
    except OSError:
        return False
