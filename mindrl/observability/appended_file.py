"""A file that grows by whole records, and stays readable if the run is killed or the disk full."""

import errno
import os
from contextlib import suppress
from pathlib import Path

from mindrl.observability.output_errors import output_errors


class AppendedFile:
    """Hands each record to the kernel before `write` returns. An existing file is continued.

    Raises:
        OutputError: from any method, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk refused must not be tried again by `close`.
            self._file = path.open("ab", buffering=0)

    def write(self, record: bytes) -> None:
        """Append all of a record, or nothing where there is no room for all."""
        with output_errors(self._path):
            before = os.fstat(self._file.fileno()).st_size
            if self._file.write(record) < len(record):
                with suppress(OSError):
                    self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with output_errors(self._path):
            self._file.close()
