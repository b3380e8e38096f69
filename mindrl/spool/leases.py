"""Leases: one of several processes is at a thing, until it is done, or is seen to be dead.

A lease is a file that one process could make, and whose time it renews. It is dead where its
process is gone from this machine, or its time has not changed for `seconds` of our own clock: the
clocks of machines are not compared. What two processes do in a rare race has to be harmless.
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
    """The leases of a folder as one process takes them; use it as a context manager."""

    root: Path
    seconds: float
    """Without a sign of life, until a lease of another machine is taken for dead."""
    holder: Holder
    held: set[Path] = field(default_factory=set)
    reported: set[Path] = field(default_factory=set)
    """Damaged leases."""
    seen: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """When each lease of others was last renewed, and when that was first seen here."""

    def __post_init__(self) -> None:
        """Renew what is held, a few times in each span."""
        self.ended = Event()
        self.heart = Thread(target=self._beat, name="leases", daemon=True)

    def __enter__(self) -> Self:
        """Begin to renew."""
        self.heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give back what is held."""
        self.ended.set()
        self.heart.join()
        for path in [*self.held]:
            self.give_back(path.name)

    def take(self, name: str) -> Holder | None:
        """Take a lease; returns who has it already, where somebody has.

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
        """Take a lease as `take`; one of another machine is watched until it is renewed or dead."""
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
        """Let others take a lease; one that others have taken meanwhile stays theirs."""
        self.held.discard(self.root / name)
        if self.holder_of(name) == self.holder:
            remove(self.root / name)

    def holder_of(self, name: str) -> Holder | None:
        """Return who has a lease; None where nobody has.

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
                    f"{path} is damaged ({error}): it is taken for expired unless its holder "
                    f"renews it within {self.seconds:g} s"
                )
            return _UNKNOWN

    def living(self, prefix: str) -> list[Holder]:
        """Return who has the leases whose names begin so, and is not known to be dead."""
        found = {path: self.holder_of(path.name) for path in sorted(self.root.glob(f"{prefix}*"))}
        return [each for path, each in found.items() if each and not self._is_dead(path, each)]

    def _bury(self, path: Path, other: Holder) -> None:
        """Remove the lease of a dead process, and not that of whoever was faster to do so."""
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
        """Renew a lease that is held; a damaged one, which would expire for others, is replaced."""
        with suppress(OSError):
            if self.holder_of(path.name) == _UNKNOWN:
                write_over(path, self._content)
            os.utime(path)

    @property
    def _content(self) -> bytes:
        return json.dumps(asdict(self.holder)).encode("ascii")
