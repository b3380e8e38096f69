"""What reward functions print: a file of bounded size, whatever they do."""

import os
import threading
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_FULL = b"\n[more is dropped]\n"


def keep_prints(path: Path | None) -> int:
    """Return a descriptor to write to: it goes on to the file, and is dropped where that is full.

    None drops all of it.
    """
    if path is None:
        return os.open(os.devnull, os.O_WRONLY)
    reading, writing = os.pipe()
    threading.Thread(target=_keep, args=(reading, path), daemon=True).start()
    return writing


def _keep(reading: int, path: Path) -> None:
    """Go on reading for as long as anybody may write: nobody is to wait for a full file."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        left = MOST_BYTES - file.tell()
        while left > 0 and (chunk := os.read(reading, _CHUNK_BYTES)):
            file.write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                file.write(_FULL)
    while os.read(reading, _CHUNK_BYTES):
        pass
