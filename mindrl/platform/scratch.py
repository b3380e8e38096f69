"""Folders of a process for sockets and sessions, which the next process removes if it was killed.

The owner holds a lock on a file in the folder. The kernel gives the lock back when the owner ends,
however it ends; so a folder whose lock is free has no owner any more. A folder without such a file
is another program's, and is left alone.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

_LOCK = ".owner"


class Scratch:
    """A folder that belongs to this process until it ends."""

    def __init__(self, folder: Path) -> None:
        """Own a folder that is there; where the file system has no locks, nobody removes it."""
        self.folder = folder
        self._lock: int | None = None
        unready = folder / f"{_LOCK}.unready"
        with suppress(OSError):
            self._lock = os.open(unready, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under its own name it has been locked from the first moment on.
            unready.rename(folder / _LOCK)

    @classmethod
    def made(cls, prefix: str) -> Self:
        """Make a folder among the temporary files, and remove those of dead owners there."""
        remove_unowned(Path(tempfile.gettempdir()), f"{prefix}*")
        return cls(Path(tempfile.mkdtemp(prefix=prefix)))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_unowned(parent: Path, pattern: str) -> None:
    """Remove the folders of a pattern whose owners have ended."""
    for lock in parent.glob(f"{pattern}/{_LOCK}"):
        with suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
