"""Pages of host memory that are given back while their addresses stay."""

import ctypes
import mmap

_LIBC = ctypes.CDLL(None)


def give_back_pages(address: int, nbytes: int) -> None:
    """Zero private memory, and return its whole pages to the operating system.

    The addresses stay valid: a page is allocated again, with zeros, when it is next used.
    """
    first, last = _whole_pages(address, nbytes)
    span = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
    if first >= last or _LIBC.madvise(*span, mmap.MADV_DONTNEED):
        # Too small, or locked in memory.
        first = last = address + nbytes
    for start, stop in ((address, first), (last, address + nbytes)):
        ctypes.memset(start, 0, stop - start)


def bytes_in_memory(address: int, nbytes: int) -> int:
    """Return the bytes of the whole pages in a range that are in memory now."""
    first, last = _whole_pages(address, nbytes)
    if first >= last:
        return nbytes
    marks = (ctypes.c_ubyte * ((last - first) // mmap.PAGESIZE))()
    if _LIBC.mincore(ctypes.c_void_p(first), ctypes.c_size_t(last - first), marks):
        return nbytes
    return bytes(marks).count(1) * mmap.PAGESIZE


def _whole_pages(address: int, nbytes: int) -> tuple[int, int]:
    """Return start and end of the whole pages in a range."""
    page = mmap.PAGESIZE
    return -(-address // page) * page, (address + nbytes) // page * page
