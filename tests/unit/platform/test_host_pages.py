"""Memory that keeps its addresses without its pages, as a KV cache does between rollouts."""

import ctypes
import mmap

import pytest
import torch

from mindrl.platform.host_pages import bytes_in_memory, give_back_pages

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(("start", "count"), [(0, 64 * PAGE), (100, 40 * PAGE + 7), (PAGE - 1, 9)])
def test_memory_is_zero_afterwards_and_its_neighbours_are_not(start: int, count: int) -> None:
    memory = torch.full((66 * PAGE,), 7, dtype=torch.uint8)
    give_back_pages(memory.data_ptr() + start, count)
    assert memory[start : start + count].eq(0).all()
    assert memory[:start].eq(7).all()
    assert memory[start + count :].eq(7).all()


def test_whole_pages_leave_and_return_one_by_one() -> None:
    memory = torch.ones(4096 * PAGE, dtype=torch.uint8)
    address = -(-memory.data_ptr() // PAGE) * PAGE
    held = 4095 * PAGE
    assert bytes_in_memory(address, held) == held
    give_back_pages(address, held)
    assert bytes_in_memory(address, held) == 0
    at = address - memory.data_ptr()
    memory[at + 10 * PAGE] = 1
    # A kernel with large pages may add neighbours.
    assert PAGE <= bytes_in_memory(address, held) <= 1024 * PAGE
    memory[at : at + held] = 3
    assert bytes_in_memory(address, held) == held


def test_pages_that_are_locked_are_zeroed_in_place() -> None:
    with mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as private:
        memory = torch.frombuffer(private, dtype=torch.uint8)
        memory.fill_(9)
        locked = ctypes.CDLL(None).mlock(ctypes.c_void_p(memory.data_ptr()), 4 * PAGE) == 0
        give_back_pages(memory.data_ptr(), 4 * PAGE)
        assert memory.eq(0).all()
        assert bytes_in_memory(memory.data_ptr(), 4 * PAGE) == 4 * PAGE or not locked
        del memory
