"""The host memory of a worker."""

import logging

import psutil
import pytest

from mindrl.errors import HostMemoryError
from mindrl.platform.host_arena import HostArena, require_host_memory, rounded


def test_places_begin_at_multiples_of_512_bytes_and_do_not_overlap() -> None:
    arena = HostArena(2048, device_type="cpu")
    first, second = arena.take(100), arena.take(513)
    assert [len(first), len(second)] == [100, 513]
    assert second.data_ptr() - first.data_ptr() == 512
    assert arena.used == 512 + rounded(513) == 1536
    first.fill_(1)
    second.fill_(2)
    assert set(first.tolist()) == {1}


def test_what_does_not_fit_lies_elsewhere_and_is_logged_with_the_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arena = HostArena(512, device_type="cpu")
    arena.take(500)
    with caplog.at_level(logging.WARNING):
        beyond = arena.take(40)
    assert len(beyond) == arena.beyond == 40
    assert arena.nbytes == 552
    assert "arena of 512 bytes has no room for 40 more behind 512" in caplog.text


def test_more_than_the_machine_has_is_refused_with_the_figures() -> None:
    require_host_memory(1 << 20)
    with pytest.raises(
        HostMemoryError, match=r"this machine needs [\d.]+ GiB of host memory, [\d.]+"
    ):
        require_host_memory(2 * psutil.virtual_memory().total)
