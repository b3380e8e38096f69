"""Read regular files only: a FIFO or a device in their place would block a program forever."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; links are followed.

    Raises:
        OSError: The file cannot be opened, or it is a FIFO, a device, a socket or a folder. Such a
            file is not opened.
    """
    _check(path.stat())
    # A FIFO that replaces the file after the check would block a plain open.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def check_regular(path: Path) -> None:
    """Raise as `open_regular` does, for files that another library opens."""
    _check(path.stat())


def read_regular(path: Path) -> bytes:
    """Return the content of a file; raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: Path) -> str:
    """Return the content of a UTF-8 file; raises as `open_regular`, and UnicodeDecodeError."""
    return read_regular(path).decode("utf-8")


def _check(found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(f"it is {_KINDS.get(kind, 'no file')}, and must be a regular file")
