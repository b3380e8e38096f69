"""Read a growing file of lines incrementally, and detect that it was replaced."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mindrl.observability.output_files import reading_errors
from mindrl.observability.regular_files import open_regular

_CHUNK_BYTES = 1 << 20
_MARK_BYTES = 64
"""Bytes before the offset that are read again at each check; they must not have changed."""


class LineTail:
    """Reads the lines that a file has gained since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        """Offset after the last complete line that was read."""
        self._file: tuple[int, int] | None = None
        """Device and inode; None before the first read."""
        self._mark = b""

    def is_restarted(self) -> bool:
        """Return whether the file was replaced, shortened, removed or rewritten.

        Raises:
            OutputError: The file cannot be read.
        """
        if self._file is None:
            return False
        try:
            with reading_errors(self.path), open_regular(self.path) as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) != self._file or found.st_size < self.read_bytes:
                    return True
                file.seek(self.read_bytes - len(self._mark))
                return file.read(len(self._mark)) != self._mark
        except FileNotFoundError:
            return True

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the offset and the content of each new complete line, with its line feed.

        An incomplete last line is yielded by a later call. A missing file has no lines.

        Raises:
            OutputError: The file cannot be read.
        """
        reading = reading_errors(self.path)
        with suppress(FileNotFoundError), reading, open_regular(self.path) as file:
            found = os.fstat(file.fileno())
            self._file = found.st_dev, found.st_ino
            file.seek(self.read_bytes)
            yield from self._whole_lines(file)

    def _whole_lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        rest = [b""]
        while chunk := file.read(_CHUNK_BYTES):
            if b"\n" not in chunk:
                rest.append(chunk)
                continue
            *whole, last = (b"".join(rest) + chunk).split(b"\n")
            rest = [last]
            for line in whole:
                start, content = self.read_bytes, line + b"\n"
                self.read_bytes += len(content)
                self._mark = content[-_MARK_BYTES:]
                yield start, content
