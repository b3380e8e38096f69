"""Formats of bytes, and foreign values on one line."""

import reprlib

_SHOWN_CHARACTERS = 200
MIB, GIB = 1 << 20, 1 << 30
_BINARY = ((GIB, "GiB"), (MIB, "MiB"))
_DECIMAL = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def mib_text(nbytes: int) -> str:
    """Format bytes of memory in MiB, so that sizes can be compared."""
    return f"{nbytes / MIB:,.1f} MiB"


def gib_text(nbytes: int) -> str:
    """Format bytes of a machine's memory or disk in GiB."""
    return f"{nbytes / GIB:.1f} GiB"


def memory_text(nbytes: int) -> str:
    """Format bytes of memory in GiB, or in MiB if below 1 GiB."""
    size, unit = unit_of(nbytes)
    return f"{nbytes / size:,.2f} {unit}"


def unit_of(nbytes: int) -> tuple[int, str]:
    """Return the bytes and the name of the unit that suits a size of memory."""
    return next((each for each in _BINARY if nbytes >= each[0]), _BINARY[-1])


def traffic_text(nbytes: int) -> str:
    """Format bytes of messages or files in decimal units."""
    for size, unit in _DECIMAL:
        if nbytes >= size:
            return f"{nbytes / size:,.2f} {unit}"
    return f"{nbytes} B" if nbytes else "0"


def quoted(value: object) -> str:
    """Format a foreign value in at most 200 characters on one line: its head and its tail."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = _SHOWN_CHARACTERS
    return shortener.repr(value)[:_SHOWN_CHARACTERS]
