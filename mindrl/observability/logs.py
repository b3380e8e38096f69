"""Log files of the driver, and of worker processes with all output of libraries."""

import faulthandler
import io
import logging
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrl.observability.output_files import output_errors
from mindrl.observability.regular_files import open_regular
from mindrl.observability.terminal import printable

TAIL_BYTES = 256 * 1024
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def configure_logging(path: Path) -> None:
    """Append log records of this process from level INFO to one file, and send them nowhere else.

    A line reads `time level logger: message`. A second call switches to its own file.

    Raises:
        OutputError: if the file cannot be opened.
    """
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _LogHandler(path)
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        level=logging.INFO,
        handlers=[handler],
        force=True,
    )


def redirect_output(path: Path) -> None:
    """Append all output of this process and its children to one file, line by line.

    Replaces file descriptors 1 and 2, so that output of C libraries is captured too. For worker
    processes; it cannot be undone.

    Raises:
        OutputError: if the file cannot be opened.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.close(target)
    sys.stdout = _text(_LogFile(1, "w", closefd=False))
    sys.stderr = _text(_LogFile(2, "w", closefd=False))


def stacks_on_signal() -> None:
    """Print the Python stacks of all threads, the main one last, on every SIGUSR1.

    Also works while the main thread loops, or waits in compiled code.
    """
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True, chain=False)


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines that are not blank, safe to show on a terminal.

    Reads at most the last 256 KiB. Colours are removed, carriage returns of progress bars end a
    line, bytes that are not UTF-8 are replaced. For an unreadable file, returns the error.
    """
    try:
        with open_regular(path) as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            content = file.read()
    except OSError as error:
        return f"({path}: {error.strerror or error})"
    text = COLOUR.sub("", content.decode("utf-8", errors="replace"))
    written = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    return printable("\n".join(written[-lines:] if lines else []))


class _LogHandler(logging.FileHandler):
    def _open(self) -> io.TextIOWrapper:
        return _text(_LogFile(self.baseFilename, "a"))


class _LogFile(io.FileIO):
    """Drops output that cannot be written: a full disk must not end a process that logs."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            super().write(data)
        return len(data)


def _text(file: io.FileIO) -> io.TextIOWrapper:
    """Return a line-buffered text file; a lone surrogate is escaped, not refused."""
    buffer = io.BufferedWriter(file)
    return io.TextIOWrapper(buffer, "utf-8", errors="backslashreplace", line_buffering=True)
