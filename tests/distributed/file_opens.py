"""Counts how often a file is opened, by whichever process: Linux says so."""

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OPENED, _CLOSED = 0x20, 0x10
"""IN_OPEN and IN_CLOSE_NOWRITE of inotify(7)."""
_EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, length of a name: the one file that is watched needs none."""


@contextmanager
def opens_of(file: Path) -> Iterator[Callable[[], int]]:
    """Watch a file; the yielded function returns how often it was opened since it was last asked.

    Linux makes one event of equal neighbours, so a file that is opened twice before it is closed
    once counts once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(os.O_NONBLOCK)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    try:
        watch = libc.inotify_add_watch(queue, bytes(file), _OPENED | _CLOSED)
        assert watch >= 0, os.strerror(ctypes.get_errno())
        yield lambda: _taken(queue)
    finally:
        os.close(queue)


def _taken(queue: int) -> int:
    try:
        events = os.read(queue, 1 << 16)
    except BlockingIOError:
        return 0
    return sum(mask == _OPENED for _, mask, _, _ in _EVENT.iter_unpack(events))
