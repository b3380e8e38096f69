"""The host memory of a worker."""

import logging

import psutil
import pytest
import torch

from mindrl.errors import HostMemoryError
from mindrl.platform.host_arena import HostArena, HostPlace, require_host_memory
from mindrl.platform.host_memory import block_sizes, rounded

GIB = 1 << 30


def sizes(place: HostPlace) -> list[int]:
    return [len(part) for part in place.parts]


def test_places_begin_at_multiples_of_512_bytes_and_do_not_overlap() -> None:
    arena = HostArena(2048, device_type="cpu")
    first, second = arena.take(100), arena.take(513)
    assert [*sizes(first), *sizes(second)] == [100, 513]
    assert second.parts[0].data_ptr() - first.parts[0].data_ptr() == 512
    assert arena.used == 512 + rounded(513) == 1536
    first.parts[0].fill_(1)
    second.parts[0].fill_(2)
    assert set(first.parts[0].tolist()) == {1}


@pytest.mark.parametrize("nbytes", [1, 512, 1537, 19_040_419_840, 41_766_000_640])
def test_blocks_are_powers_of_two_so_that_no_allocator_rounds_them_up(nbytes: int) -> None:
    blocks = block_sizes(nbytes)
    assert all(size.bit_count() == 1 for size in blocks)
    assert sum(blocks) == rounded(nbytes)
    assert len(set(blocks)) == len(blocks)


def test_17_and_three_quarters_gib_are_four_blocks_where_one_would_take_32_gib() -> None:
    assert [size / GIB for size in block_sizes(int(17.75 * GIB))] == [16, 1, 0.5, 0.25]
    assert block_sizes(0) == []


def test_a_place_goes_on_in_the_next_block_and_is_read_as_one() -> None:
    # Blocks of 2048, 1024 and 512 bytes.
    arena = HostArena(3584, device_type="cpu")
    first, second, third = arena.take(1500), arena.take(1800), arena.take(4)
    assert [sizes(place) for place in (first, second, third)] == [[1500], [512, 1024, 264], [4]]
    assert (arena.used, arena.beyond) == (3584 + 512, 512)
    whole = torch.randint(256, (1800,), dtype=torch.uint8)
    for part, values in zip(second.parts, whole.split(sizes(second)), strict=True):
        part.copy_(values)
    for start, stop in ((0, 1800), (500, 520), (512, 1536), (1530, 1800), (7, 9)):
        assert torch.equal(second.read(start, stop), whole[start:stop])
    inside = second.read(512, 1536)
    assert inside.data_ptr() == second.parts[1].data_ptr(), "what lies in one part is not copied"


def test_what_does_not_fit_lies_elsewhere_and_is_logged_with_the_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    arena = HostArena(512, device_type="cpu")
    arena.take(500)
    with caplog.at_level(logging.WARNING):
        beyond = arena.take(40)
    assert sizes(beyond) == [40]
    assert (arena.beyond, arena.nbytes) == (512, 1024)
    assert "arena of 512 bytes cannot hold 40 bytes more than the 512 in use" in caplog.text


def test_more_than_the_machine_has_is_refused_with_the_figures() -> None:
    require_host_memory(1 << 20)
    with pytest.raises(
        HostMemoryError, match=r"this machine needs [\d.]+ GiB of host memory; [\d.]+"
    ):
        require_host_memory(2 * psutil.virtual_memory().total)
