"""The lock of a run folder: only one process at a time writes into it.

The kernel's lock on `.lock` is released when its process ends, however that ends, and works across
machines if their file system shares locks. Some shared file systems keep locks per machine, or have
none: so `.owner.json` names the process, and the process renews the file's time. Another machine
takes the lock only after it has seen no renewal for `_SILENT_SECONDS` of its own clock; the clocks
of machines are not compared.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

from mindrl.errors import OutputError
from mindrl.observability.holder import Holder, this_process
from mindrl.observability.output_files import output_errors, write_json_atomically
from mindrl.observability.regular_files import read_regular
from mindrl.observability.terminal import note

_LOCK, _OWNER = ".lock", ".owner.json"
_RENEWAL_SECONDS = 5.0
_SILENT_SECONDS = 30.0
"""Six renewals, since a busy file server may delay some."""
_LOOK_SECONDS = 0.5
_HELD = frozenset({errno.EACCES, errno.EAGAIN})
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
_UNKNOWN = Holder(host="an unknown machine", pid=0, started=0.0, what="a run")


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Create and lock a run folder for this process, before anything in it is changed.

    Raises:
        OutputError: Another process writes into the folder, or the folder cannot be written.
    """
    path, own = folder / _LOCK, this_process("a run")
    with output_errors(folder, "a run needs a writable folder"):
        folder.mkdir(parents=True, exist_ok=True)
    # Closing the file a second time in one process would release the lock.
    if _owner(folder) == own:
        raise _in_use(folder, own)
    with output_errors(path):
        # Not flock: every process forked from this one would keep it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        has_locked = _has_locked(folder, descriptor)
        _wait_for_silence(folder, own, has_locked=has_locked)
        write_json_atomically(folder / _OWNER, asdict(own))
        if not has_locked:
            # If two processes arrive together, the last writer owns it.
            time.sleep(_LOOK_SECONDS)
            if (other := _owner(folder)) != own:
                raise _in_use(folder, other)
        try:
            with _renewed(folder / _OWNER):
                yield
        finally:
            # The folder may have been removed or replaced meanwhile.
            if _owner(folder) == own:
                (folder / _OWNER).unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _has_locked(folder: Path, descriptor: int) -> bool:
    """Take the kernel's lock; return False if the file system has no locks.

    Raises:
        OutputError: Another process has the lock.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise _in_use(folder, _owner(folder)) from None
        if error.errno in _NO_LOCKS:
            return False
        raise OutputError(f"{folder / _LOCK} cannot be locked: {error}") from error
    return True


def _wait_for_silence(folder: Path, own: Holder, *, has_locked: bool) -> None:
    """Return once the recorded owner has ended, or has stopped renewing its record.

    Raises:
        OutputError: The owner still runs.
    """
    other = _owner(folder)
    if other is None or other.is_gone or (has_locked and other.shares_our_kernel):
        return
    if other.host == own.host:
        raise _in_use(folder, other)
    note(
        f"{folder} was last used by {other}: waiting up to {_SILENT_SECONDS:.0f} s to see whether "
        "it still runs"
    )
    before, deadline = _renewal(folder), time.monotonic() + _SILENT_SECONDS
    while before is not None and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        if _renewal(folder) not in (before, None):
            raise _in_use(folder, _owner(folder) or other)


def _owner(folder: Path) -> Holder | None:
    """Return the recorded process; None without a record."""
    try:
        return Holder(**json.loads(read_regular(folder / _OWNER)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return _UNKNOWN


def _renewal(folder: Path) -> int | None:
    """Return the time of the last renewal in ns; None without a record."""
    with suppress(FileNotFoundError):
        return (folder / _OWNER).stat().st_mtime_ns
    return None


@contextmanager
def _renewed(record: Path) -> Iterator[None]:
    """Renew the time of a record while the body runs."""
    ended = Event()

    def renew() -> None:
        while not ended.wait(_RENEWAL_SECONDS):
            with suppress(OSError):
                os.utime(record)

    heart = Thread(target=renew, name="run lock", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()


def _in_use(folder: Path, other: Holder | None) -> OutputError:
    who = "another process"
    if other is not None and other != _UNKNOWN:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(other.started))
        who = f"{other}, started at {started}"
    return OutputError(
        f"{folder} is in use by {who}: two runs must not write into one folder. Wait until that "
        "process ends, stop it, or name another folder, for example hydra.run.dir=outputs/another"
    )
