"""Folders of a process for sockets and sessions; the next process removes them after a kill.

The owner holds a lock on a file in the folder. The kernel releases the lock when the owner ends,
however it ends; so a folder with an unlocked file has no owner. A folder without such a file
belongs to another program and is not touched.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

ENGINE_SOCKETS = "VLLM_RPC_BASE_PATH"
"""Variable with the folder of vLLM's sockets, which a killed engine leaves."""
_LOCK = ".owner"


class Scratch:
    """A folder owned by this process until it ends."""

    def __init__(self, folder: Path) -> None:
        """Own an existing folder; on a file system without locks it is never removed."""
        self.folder = folder
        self._lock: int | None = None
        unready = folder / f"{_LOCK}.unready"
        with suppress(OSError):
            self._lock = os.open(unready, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Renamed after locking: under its final name it is never unlocked.
            unready.rename(folder / _LOCK)

    @classmethod
    def made(cls, prefix: str, parent: Path | None = None) -> Self:
        """Create a folder, and remove those of ended owners with this prefix.

        It is in the folder for temporary files, unless another is given.
        """
        where = parent or Path(tempfile.gettempdir())
        remove_unowned(where, f"{prefix}*")
        return cls(Path(tempfile.mkdtemp(prefix=prefix, dir=where)))

    def keep_over_exec(self) -> None:
        """Let the program that replaces this process own the folder, until it ends."""
        if self._lock is not None:
            os.set_inheritable(self._lock, True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_unowned(parent: Path, pattern: str) -> None:
    """Remove the folders matching a pattern whose owners have ended."""
    for lock in parent.glob(f"{pattern}/{_LOCK}"):
        with suppress(OSError):
            descriptor = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(descriptor)
