"""Garbage collection: off while a plan creates millions of objects, forced to free a heap."""

import atexit
import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection in the body: it costs a third more time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_again() -> None:
    """Enable garbage collection again, also at exit: the plan is finished."""
    atexit.unregister(gc.freeze)
    gc.enable()


@contextmanager
def planning() -> Iterator[None]:
    """Disable garbage collection in a program that plans, also at exit; see `collect_again`."""
    atexit.register(gc.freeze)
    with no_collection():
        try:
            yield
        finally:
            # Otherwise the first collection would scan the whole plan at once.
            if not gc.isenabled():
                gc.freeze()


def release_free_heap() -> None:
    """Collect garbage and return free pages of the C heap to the operating system.

    glibc keeps freed blocks below a live one; after weights have moved out of the heap that can be
    gigabytes. With another libc only garbage is collected.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
