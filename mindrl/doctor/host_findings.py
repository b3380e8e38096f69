"""The doctor's findings on the host, its network and its disks: one pure function each."""

import resource
from collections.abc import Iterator

from mindrl.doctor.facts import Facts, Observation, Verdict
from mindrl.observability.units import GIB, MIB, gib_text
from mindrl.platform.probes.host import DiskFacts, NetworkFacts
from mindrl.platform.sandbox import HOW_TO_ALLOW

_SHARED = "/dev/shm"  # noqa: S108 - a name to show; no file is made
_ANY = resource.RLIM_INFINITY
_ENOUGH_FILES = 65536
"""Ray raises the limit to this by itself if the hard limit allows it."""
_LEAST_FILES = 4096
"""Ray warns below this: connections may fail."""
_ENOUGH_PROCESSES = 4096
"""Includes threads: a worker has more than a hundred."""
_ENOUGH_SHARED = GIB + GIB // 4
"""A run gives Ray 1 GiB for objects; the engine and the collectives need more."""
_LEAST_SHARED = 128 * MIB
"""Containers default to 64 MiB, which collectives on one machine exceed."""
_LEAST_MEMORY = 4 * GIB
"""The libraries of one worker use 1 GiB, and Ray the same."""
_MUCH_SWAP = GIB
_LEAST_DISK = GIB
_ENOUGH_DISK = 20 * GIB
"""An exported model with 7 B parameters has 15 GiB."""


def limits(facts: Facts) -> Iterator[Observation]:
    """Check the limits on processes and open files; a run that starts Ray raises the latter."""
    host = facts.machine.host
    number = "unlimited" if host.open_files == _ANY else f"{host.open_files:,}"
    verdict: Verdict = "ok"
    advice = ""
    if not _is_enough(host.open_files, _ENOUGH_FILES):
        joins = facts.machine.ray_address or facts.head
        reached = host.open_files if joins else host.open_files_hard
        verdict = "note" if _is_enough(reached, _LEAST_FILES) else "problem"
        advice = f"ulimit -n {_ENOUGH_FILES} before the run, and before `ray start`"
        if not _is_enough(host.open_files_hard, _ENOUGH_FILES):
            advice += f"; raise the hard limit of {host.open_files_hard:,} (nofile) first"
    yield Observation("limits", f"{number} open files", verdict, advice)
    if not _is_enough(host.processes, _ENOUGH_PROCESSES):
        found = f"{host.processes} processes and threads"
        yield Observation("limits", found, "note", f"ulimit -u {_ENOUGH_PROCESSES} or more")


def shared_memory(facts: Facts) -> Iterator[Observation]:
    """Check /dev/shm, which holds Ray's objects and messages between ranks."""
    free = facts.machine.host.shared_memory
    advice = "in a container: --shm-size=16g or --ipc=host"
    if free is None:
        yield Observation(_SHARED, "missing", "problem", advice)
    elif free < _ENOUGH_SHARED:
        found = f"{gib_text(free)} free; Ray uses 1 GiB of it in a run"
        yield Observation(_SHARED, found, "problem" if free < _LEAST_SHARED else "note", advice)
    else:
        yield Observation(_SHARED, f"{gib_text(free)} free")


def host_memory(facts: Facts) -> Iterator[Observation]:
    """Check the available memory, and the limit of a container."""
    host = facts.machine.host
    limit = min(host.memory, host.container_memory or host.memory)
    found = f"{gib_text(host.memory_available)} available of {gib_text(host.memory)}"
    if min(host.memory_available, limit) < _LEAST_MEMORY:
        advice = "end other programs: workers keep offloaded memory on the host"
        yield Observation("host memory", found, "problem", advice)
    else:
        yield Observation("host memory", found)
    if limit < host.memory:
        found = (
            f"a control group limits this process to {gib_text(limit)} of {gib_text(host.memory)}"
        )
        advice = f"check a run with `mindrl check --host-memory-gib {limit // GIB}`; the system "
        yield Observation("host memory", found, "note", advice + "kills workers above this limit")


def swap(facts: Facts) -> Iterator[Observation]:
    """Check swap: a worker that is swapped out delays all others."""
    used = facts.machine.host.swap_used
    if used > _MUCH_SWAP:
        advice = "end the programs that use it, or turn swap off for the run"
        yield Observation("swap", f"{gib_text(used)} in use", "note", advice)


def code_sandbox(facts: Facts) -> Iterator[Observation]:
    """Yield the sandbox of tools that run code of the policy, which few runs have."""
    search = facts.machine.sandbox
    if search.sandbox is None:
        found = f"none works ({'; '.join(search.failures)})"
        advice = f"for runs with tools that execute code: {HOW_TO_ALLOW}"
        yield Observation("sandbox", found, "note", advice)
    else:
        yield Observation("sandbox", f"{search.name} works, for tools that run code")


def loopback(facts: Facts) -> Iterator[Observation]:
    """Check the loopback address, where a run on one machine listens, and the host name."""
    network = facts.machine.network
    if network.loopback_works:
        yield Observation("loopback", "127.0.0.1 answers")
    else:
        advice = "bring the interface lo up; a sandbox or firewall may forbid it"
        yield Observation("loopback", "127.0.0.1 cannot be reached", "problem", advice)
    if network.hostname_address is None:
        found = f"{network.hostname} has no address"
        advice = f"add a line to /etc/hosts: 127.0.0.1 {network.hostname}"
        yield Observation("host name", found, "note", advice)


def proxies(facts: Facts) -> Iterator[Observation]:
    """Find proxies that would also be used for the loopback address."""
    names = facts.machine.network.proxies
    if names:
        found = f"{', '.join(names)} set, and no_proxy does not contain 127.0.0.1"
        yield Observation("proxy", found, "note", "export no_proxy=127.0.0.1,localhost")


def group_ports(facts: Facts) -> Iterator[Observation]:
    """Check whether the system may assign the ranks' rendezvous ports to other programs."""
    ports, network = facts.machine.group_ports, facts.machine.network
    if ports is None or all(_is_kept(port, network) for port in ports):
        return
    text = f"{ports[0]}-{ports[-1]}"
    found = f"the system may assign the rendezvous ports {text} to other programs"
    advice = f"as root: sysctl -w net.ipv4.ip_local_reserved_ports={text}"
    yield Observation("ports", found, "note", advice)


def given_port(facts: Facts) -> Iterator[Observation]:
    """Yield whether the given port is free."""
    port = facts.port
    if facts.port_is_free:
        yield Observation("ports", f"{port} is free")
    elif facts.port_is_free is False:
        advice = "use another port, or end the program that uses it: ss -ltnp"
        yield Observation("ports", f"{port} is in use or forbidden", "problem", advice)


def given_head(facts: Facts) -> Iterator[Observation]:
    """Yield whether the given Ray head can be reached."""
    if facts.head is None:
        return
    address = "{}:{}".format(*facts.head)
    if facts.head_error:
        found = f"{address} cannot be reached: {facts.head_error}"
        advice = "start the head with a --node-ip-address in this network, and open its port"
        yield Observation("ray head", found, "problem", advice)
    else:
        yield Observation("ray head", f"{address} answers")


def token(facts: Facts) -> Iterator[Observation]:
    """Check the token for joining a cluster; a run that starts Ray makes its own."""
    found, address = facts.machine.token, facts.machine.ray_address
    if address is None and facts.head is None:
        yield Observation("ray", "a run starts its own Ray on 127.0.0.1 with a new token")
    elif found.source is None:
        advice = "ray get-auth-token --generate on one node, then copy ~/.ray/auth_token to each"
        yield Observation("ray token", "missing", "problem", advice)
    elif found.readable_by_others:
        text = f"{found.source} can be read by other users"
        yield Observation("ray token", text, "note", f"chmod 600 {found.source}")
    else:
        yield Observation("ray token", f"in {found.source}")


def disks(facts: Facts) -> Iterator[Observation]:
    """Check the disks of the runs, and of Ray's sockets and logs."""
    yield _disk("outputs", facts.outputs, "use --outputs DIR and hydra.run.dir=DIR/...")
    yield _disk("ray session", facts.session, "set XDG_CACHE_HOME")
    if not facts.session_fits:
        found = f"the path {facts.session.path} is too long for sockets; Ray uses /tmp"
        yield Observation("ray session", found, "note", "set XDG_CACHE_HOME to a shorter path")


def _disk(what: str, disk: DiskFacts, other: str) -> Observation:
    if not disk.is_writable:
        return Observation(what, f"{disk.path} cannot be written", "problem", other)
    found = f"{disk.path}, {gib_text(disk.free)} free"
    if disk.free < _LEAST_DISK:
        return Observation(what, found, "problem", f"free disk space, or {other}")
    if what == "outputs" and disk.free < _ENOUGH_DISK:
        return Observation(what, found, "note", f"an exported model may be too large; {other}")
    return Observation(what, found)


def _is_enough(limit: int, needed: int) -> bool:
    return limit == _ANY or limit >= needed


def _is_kept(port: int, network: NetworkFacts) -> bool:
    reserved = any(port in ports for ports in network.reserved_ports)
    return reserved or port not in network.ephemeral_ports


HOST_FINDINGS = (limits, shared_memory, host_memory, swap, code_sandbox)
NETWORK_FINDINGS = (loopback, proxies, group_ports, given_port, given_head, token)
