"""Servers that join and leave while a run lives: a file lists their addresses."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from mindrl.config.server_address import unfit_server
from mindrl.observability.regular_files import read_regular_text

_LOOK_SECONDS = 0.5


def read_addresses(path: Path) -> list[str]:
    """Return the addresses in a file, one per line, without duplicates; `#` starts a comment.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not text.
    """
    lines = (line.partition("#")[0].strip() for line in read_regular_text(path).splitlines())
    return [*dict.fromkeys(line.rstrip("/") for line in lines if line)]


@dataclass(kw_only=True)
class ServerFile:
    """Assigns addresses of the file to replicas; several threads may call it."""

    path: Path
    allow_remote: bool
    notify: Callable[[str], None]
    held: dict[int, str] = field(default_factory=dict, init=False)
    """Address of each replica that has one, by its number."""
    listed: list[str] = field(default_factory=list, init=False)
    """Usable addresses when the file was last read."""
    refused: set[str] = field(default_factory=set, init=False)
    """Addresses that a run must not use, each named once in a warning."""
    lock: Lock = field(default_factory=Lock, init=False)

    def addresses(self) -> list[str]:
        """Return the usable addresses; if the file cannot be read, the previous ones."""
        with self.lock:
            return self._read()

    def claim(self, number: int, meanwhile: Callable[[], None]) -> str:
        """Return the address of a replica: its own while that is listed, otherwise a free one.

        Waits until there is one; `meanwhile` is called repeatedly and may raise.
        """
        while (address := self._claimed(number)) is None:
            meanwhile()
            time.sleep(_LOOK_SECONDS)
        return address

    def has_left(self, number: int) -> bool:
        """Return whether the address of a replica is no longer in the file."""
        with self.lock:
            return number in self.held and self.held[number] not in self._read()

    def _claimed(self, number: int) -> str | None:
        with self.lock:
            listed = self._read()
            if self.held.get(number) not in listed:
                self.held.pop(number, None)
                free = [each for each in listed if each not in self.held.values()]
                if free:
                    self.held[number] = free[0]
            return self.held.get(number)

    def _read(self) -> list[str]:
        try:
            found = read_addresses(self.path)
        except (OSError, UnicodeDecodeError):
            return self.listed
        unfit = {each: unfit_server(each, allow_remote=self.allow_remote) for each in found}
        for address, why in unfit.items():
            if why and address not in self.refused:
                self.refused.add(address)
                self.notify(f"warning: {self.path}: {address} {why}")
        self.listed = [each for each in found if not unfit[each]]
        return self.listed
