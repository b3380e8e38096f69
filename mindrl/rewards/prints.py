"""Output of reward functions: a file with a maximum size."""

import os
import threading
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_FULL = b"\n[more is dropped]\n"


def keep_prints(path: Path | None) -> int:
    """Return a file descriptor whose output is appended to the file until that is full.

    Further output, or all with None, is discarded.
    """
    if path is None:
        return os.open(os.devnull, os.O_WRONLY)
    reading, writing = os.pipe()
    threading.Thread(target=_keep, args=(reading, path), daemon=True).start()
    return writing


def _keep(reading: int, path: Path) -> None:
    """Keep reading while any process may write, so that no writer blocks on a full file."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        left = MOST_BYTES - file.tell()
        while left > 0 and (chunk := os.read(reading, _CHUNK_BYTES)):
            file.write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                file.write(_FULL)
    while os.read(reading, _CHUNK_BYTES):
        pass
