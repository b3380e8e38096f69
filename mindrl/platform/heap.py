"""Gives freed memory back to the operating system."""

import ctypes
import gc
import platform


def release_free_heap() -> None:
    """Collect garbage and hand the C heap's free pages back to the operating system.

    glibc keeps freed blocks below a live one; after weights were moved out of the heap that
    can be gigabytes. On another libc only the garbage is collected.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
