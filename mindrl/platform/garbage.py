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


@contextmanager
def collection() -> Iterator[None]:
    """Look for garbage after all, also when the program ends: its plan is made."""
    atexit.unregister(gc.freeze)
    gc.enable()
    try:
        yield
    finally:
        gc.disable()


@contextmanager
def planning() -> Iterator[None]:
    """Look for no garbage in a program that plans and ends, nor when it ends."""
    atexit.register(gc.freeze)
    with no_collection():
        try:
            yield
        finally:
            # Else all that was planned is looked through at once, as soon as looking is allowed.
            gc.freeze()
