"""Files of a spool: written atomically, synced to disk, and protected by checksums."""

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import xxhash

from mindrl.checkpoint.commits import sync_folder
from mindrl.errors import SpoolError
from mindrl.observability.regular_files import read_regular

_BUILDING = ".building"
_DIGITS = 32
_HOUR_SECONDS = 3600
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
T = TypeVar("T")


def write_new(path: Path, content: bytes) -> bool:
    """Write a new file; return False, without changes, if it exists.

    Raises:
        OSError: It cannot be written; nothing of it is left.
    """
    with _temporary_file(path, content) as building:
        try:
            os.link(building, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


def write_over(path: Path, content: bytes) -> None:
    """Write a file, replacing an existing one.

    Raises:
        OSError: It cannot be written; the old file is kept.
    """
    with _temporary_file(path, content) as building:
        building.replace(path)
    sync_folder(path.parent)


def sealed(content: bytes) -> bytes:
    """Return the bytes with their checksum prepended."""
    return f"{xxhash.xxh3_128_hexdigest(content)}\n".encode("ascii") + content


def unsealed(path: Path) -> bytes:
    """Read sealed content.

    Raises:
        SpoolError: It is damaged.
        OSError: It cannot be read.
    """
    found = read_regular(path)
    checksum, content = found[:_DIGITS], memoryview(found)[_DIGITS + 1 :]
    if xxhash.xxh3_128_hexdigest(content).encode("ascii") != checksum:
        raise SpoolError(f"{path} is damaged: the checksum of {len(found)} bytes does not match")
    return bytes(content)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    with suppress(FileNotFoundError):
        path.unlink()


def sync_tree(folder: Path) -> None:
    """Sync all files of a folder, and of those in it, to disk."""
    for path in folder.iterdir():
        if path.is_dir():
            sync_tree(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def forget_building(folder: Path) -> None:
    """Remove files of killed writers from a folder: those older than an hour."""
    for path in folder.glob(f".*{_BUILDING}"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _HOUR_SECONDS:
                path.unlink()


def wait_for_room(
    write: Callable[[], T], notify: Callable[[str], None], wait: Callable[[], None]
) -> T:
    """Call `write`, and retry while the disk is full; this is reported once.

    `wait` waits between tries; it raises to abort.
    """
    is_reported = False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            if not is_reported:
                notify(f"{error}: this job waits for free space, and no data is lost")
                is_reported = True
            wait()


@contextmanager
def _temporary_file(path: Path, content: bytes) -> Iterator[Path]:
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_BUILDING}")
    try:
        with building.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield building
    finally:
        remove(building)
