"""How workers find each other: one address, no race for a port."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mindrl.platform.device import PLATFORMS
from mindrl.platform.rendezvous import listen

JOINER = Path(__file__).with_name("joiner.py")
BESIDE = Path(__file__).with_name("beside.py")


def own_address() -> str | None:
    """Return an address of this machine that is not the loopback's; None without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def test_a_listener_on_loopback_is_reached_there_and_at_no_other_address() -> None:
    with listen("127.0.0.1") as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with socket.create_connection((host, port), timeout=5):
            pass
        if (other := own_address()) is not None:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, port), timeout=5)


def test_two_listeners_have_two_ports() -> None:
    with listen("127.0.0.1") as first, listen("127.0.0.1") as second:
        assert first.getsockname()[1] != second.getsockname()[1]


def test_an_address_of_the_new_internet_protocol_is_listened_on_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        listener = listen("::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        assert listener.family == socket.AF_INET6
        assert listener.getsockname()[0] == "::1"


def start_rank(rank: int, listener: socket.socket) -> "subprocess.Popen[str]":
    host, port = listener.getsockname()
    descriptors = [] if rank else [listener.fileno()]
    environment = PLATFORMS["cpu"].worker_environment(workers=2, one_machine=True)
    return subprocess.Popen(
        [sys.executable, JOINER, *map(str, (rank, host, port, *descriptors))],
        env=os.environ | environment,
        pass_fds=descriptors,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_meet_through_the_listener_and_open_no_port_beyond_loopback() -> None:
    with listen("127.0.0.1") as listener:
        processes = [start_rank(rank, listener) for rank in range(2)]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    found = [json.loads(text.splitlines()[-1]) for text in printed]
    assert [(one["rank"], one["sum"]) for one in found] == [(0, 21.0), (1, 21.0)]
    assert {address for one in found for address in one["listening"]} == {"127.0.0.1"}


def start_beside(*arguments: str) -> "subprocess.Popen[str]":
    environment = PLATFORMS["cpu"].worker_environment(workers=2, one_machine=True)
    command = [sys.executable, str(BESIDE), *arguments]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.nightly
def test_two_worlds_meet_in_a_group_beside_their_own_which_stay_what_they_are() -> None:
    first = start_beside("0")
    assert first.stdout is not None
    address = first.stdout.readline().split()
    assert address[0] == "127.0.0.1"
    second = start_beside("1", *address)
    printed = [process.communicate(timeout=120)[0] for process in (first, second)]
    for rank, text in enumerate(printed):
        received, again, default, world_size, refused = json.loads(text.splitlines()[-1])
        assert received == again == 11.0 - rank
        assert (default, world_size) == (1.0, 1)
        # Once torch needs no entry of ours to send in such a group, that entry can go.
        assert "not registered" in refused
