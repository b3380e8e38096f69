"""Leases: one of several processes works on an item until it is done or counts as dead.

A lease is a file that only one process could create, and whose time it renews. It has expired if
its process has ended on this machine, or if its time has not changed for `seconds` of our own
clock: the clocks of machines are not compared. In a rare race two processes may hold a lease, so
their work must tolerate it.
"""

import json
import os
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Self

from mindrl.observability.holder import Holder
from mindrl.observability.regular_files import read_regular
from mindrl.observability.terminal import note
from mindrl.spool.files import remove, write_new, write_over

_UNKNOWN = Holder(host="an unknown machine", pid=0, started=0.0, what="an unknown job")
"""Holder of a damaged lease."""


@dataclass
class Leases:
    """Leases of a folder for one process; use it as a context manager."""

    root: Path
    seconds: float
    """Time without renewal after which a lease of another machine has expired."""
    holder: Holder
    held: set[Path] = field(default_factory=set)
    reported: set[Path] = field(default_factory=set)
    """Damaged leases."""
    seen: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Last renewal of each lease of others, and when it was first seen here."""

    def __post_init__(self) -> None:
        """Prepare the thread that renews held leases, a few times in each span."""
        self.ended = Event()
        self.heart = Thread(target=self._beat, name="leases", daemon=True)

    def __enter__(self) -> Self:
        """Start to renew."""
        self.heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Release the held leases."""
        self.ended.set()
        self.heart.join()
        for path in [*self.held]:
            self.give_back(path.name)

    def take(self, name: str) -> Holder | None:
        """Take a lease; return its current holder if there is one.

        Raises:
            OSError: The folder cannot be written.
        """
        path = self.root / name
        while not write_new(path, self._content):
            other = self.holder_of(name)
            if other is not None and not self._is_dead(path, other):
                return other
            if other is not None:
                self._bury(path, other)
        self.held.add(path)
        return None

    def take_or_wait(self, name: str) -> Holder | None:
        """Take a lease as `take`; wait until one of another machine is renewed or has expired."""
        deadline = time.monotonic() + self.seconds + 1
        other, path = self.take(name), self.root / name
        renewed = self.seen.get(path)
        while other is not None and not other.is_here and time.monotonic() < deadline:
            if self.seen.get(path) != renewed:
                return other
            time.sleep(min(1.0, self.seconds / 5))
            other = self.take(name)
        return other

    def give_back(self, name: str) -> None:
        """Release a lease, unless another process has taken it meanwhile."""
        self.held.discard(self.root / name)
        if self.holder_of(name) == self.holder:
            remove(self.root / name)

    def holder_of(self, name: str) -> Holder | None:
        """Return the holder of a lease; None without one.

        A damaged lease is reported once, and has an unknown holder.
        """
        path = self.root / name
        try:
            return Holder(**json.loads(read_regular(path)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            if path not in self.reported:
                self.reported.add(path)
                note(
                    f"{path} is damaged ({error}): it expires unless its holder renews it within "
                    f"{self.seconds:g} s"
                )
            return _UNKNOWN

    def living(self, prefix: str) -> list[Holder]:
        """Return the holders of leases whose names have this prefix, without expired ones."""
        found = {path: self.holder_of(path.name) for path in sorted(self.root.glob(f"{prefix}*"))}
        return [each for path, each in found.items() if each and not self._is_dead(path, each)]

    def _bury(self, path: Path, other: Holder) -> None:
        """Remove an expired lease, but not that of a process that removed it first."""
        grave = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):
            path.rename(grave)
            if self.holder_of(grave.name) != other:
                with suppress(FileExistsError):
                    os.link(grave, path)
            remove(grave)

    def _is_dead(self, path: Path, other: Holder) -> bool:
        if other == self.holder:
            return False
        try:
            renewed = path.stat().st_mtime_ns
        except FileNotFoundError:
            return True
        known, since = self.seen.get(path, (None, 0.0))
        if known != renewed:
            since = time.monotonic()
            self.seen[path] = renewed, since
        return other.is_gone or time.monotonic() - since > self.seconds

    def _beat(self) -> None:
        while not self.ended.wait(self.seconds / 5):
            for path in [*self.held]:
                self._renew(path)

    def _renew(self, path: Path) -> None:
        """Renew a held lease; replace a damaged one, which would expire for others."""
        with suppress(OSError):
            if self.holder_of(path.name) == _UNKNOWN:
                write_over(path, self._content)
            os.utime(path)

    @property
    def _content(self) -> bytes:
        return json.dumps(asdict(self.holder)).encode("ascii")
