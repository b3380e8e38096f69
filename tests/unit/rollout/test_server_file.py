"""Addresses of servers that join and leave: each replica has one, for as long as it is listed."""

from pathlib import Path

import pytest

from mindrl.errors import InterruptedRunError
from mindrl.rollout.http.server_file import ServerFile

A, B, C = (f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002))


class Listed:
    """A file with addresses, and what was said of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.said = path, list[str]()
        self.write()
        self.file = ServerFile(path=path, allow_remote=False, notify=self.said.append)

    def write(self, *lines: str) -> None:
        self.path.write_text("".join(f"{line}\n" for line in lines), "utf-8")

    def claim(self, number: int) -> str:
        return self.file.claim(number, self.give_up)

    def give_up(self) -> None:
        raise InterruptedRunError("no address is free")


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    return Listed(tmp_path / "servers.txt")


def test_each_replica_has_its_own_address_for_as_long_as_that_is_listed(listed: Listed) -> None:
    listed.write(A, B)
    assert [listed.claim(number) for number in (0, 1)] == [A, B]
    with pytest.raises(InterruptedRunError):
        listed.claim(2)
    # In another order, and with another one before it.
    listed.write(C, B, A)
    assert [listed.claim(number) for number in (1, 0, 2)] == [B, A, C]
    assert not any(listed.file.has_left(number) for number in range(4))


def test_one_that_was_removed_has_left_and_another_takes_its_place(listed: Listed) -> None:
    listed.write(A, B)
    assert [listed.claim(number) for number in (0, 1)] == [A, B]
    listed.write(B)
    assert [listed.file.has_left(number) for number in (0, 1)] == [True, False]
    with pytest.raises(InterruptedRunError):
        listed.claim(0)
    assert not listed.file.has_left(0)
    listed.write(B, C)
    assert listed.claim(0) == C


def test_comments_empty_lines_and_repeated_addresses_are_no_servers(listed: Listed) -> None:
    listed.write("# all of one node", "", f"  {A}/  # the first", A, "   ")
    assert listed.file.addresses() == [A]


def test_an_address_that_a_run_must_not_use_is_named_once_and_left_out(listed: Listed) -> None:
    listed.write("http://10.0.0.7:8000", B)
    for _ in range(3):
        assert listed.file.addresses() == [B]
    (said,) = listed.said
    assert said.startswith(f"warning: {listed.path}: http://10.0.0.7:8000 is not a loopback")


@pytest.mark.parametrize("trouble", ["removed", "not text", "a folder"])
def test_of_a_file_that_cannot_be_read_the_servers_stay(listed: Listed, trouble: str) -> None:
    listed.write(A)
    assert listed.claim(0) == A
    listed.path.unlink()
    if trouble == "not text":
        listed.path.write_bytes(b"\xff\xfe\xff")
    elif trouble == "a folder":
        listed.path.mkdir()
    assert not listed.file.has_left(0)
    assert listed.claim(0) == A
