"""When no garbage is looked for: a large plan is millions of objects, none of them garbage."""

import atexit
import gc
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
