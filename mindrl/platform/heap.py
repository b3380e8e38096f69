"""Gives freed memory back to the operating system."""

import ctypes
import ctypes.util
import gc


def release_free_heap() -> None:
    """Collect garbage and return free heap pages; does the first part only without glibc."""
    gc.collect()
    libc = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
