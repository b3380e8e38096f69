"""When garbage is looked for: never in a plan of millions of objects; at once to free a heap."""

import atexit
import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no garbage: the search costs a third more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_again() -> None:
    """Look for garbage from here on, also when the program ends: its plan is made."""
    atexit.unregister(gc.freeze)
    gc.enable()


@contextmanager
def planning() -> Iterator[None]:
    """Look for no garbage in a program that plans, nor when it ends; `collect_again` ends that."""
    atexit.register(gc.freeze)
    with no_collection():
        try:
            yield
        finally:
            # Else all that was planned is looked through at once, as soon as looking is allowed.
            if not gc.isenabled():
                gc.freeze()


def release_free_heap() -> None:
    """Collect garbage and hand the C heap's free pages back to the operating system.

    glibc keeps freed blocks below a live one; after weights were moved out of the heap that
    can be gigabytes. On another libc only the garbage is collected.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
