"""One weight file: opened, or refused with what is wrong with it. Imports no torch."""

import json
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from mindrl.errors import ModelError

Framework = Literal["np", "pt"]
"""What a slice of a tensor is read as: `np` needs no torch."""

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""Of the format; more is no header."""


def open_file(path: Path, framework: Framework) -> Any:
    """Open a safetensors file; the caller closes it.

    Raises:
        ModelError: It cannot be read; where it is cut off, with the first tensor that is not whole.
    """
    try:
        return safe_open(path, framework=framework)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read: {_damage(path) or error}") from error


def _damage(path: Path) -> str | None:
    """Say what a file lacks; None where it lacks nothing or cannot be understood."""
    try:
        found_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_LENGTH_BYTES)
            header_bytes = int.from_bytes(start, "little")
            header = file.read(header_bytes) if header_bytes <= _MOST_HEADER_BYTES else b""
        if len(header) < header_bytes or len(start) < _LENGTH_BYTES:
            return _damaged_header(start, header_bytes, found_bytes)
        stops = _stops(json.loads(header))
    except (OSError, ValueError):
        return None
    before = _LENGTH_BYTES + header_bytes
    cut = [name for stop, name in stops if before + stop > found_bytes]
    if not cut:
        return None
    return (
        f"it is cut off: {found_bytes} bytes of {before + stops[-1][0]}; "
        f"the first tensor that is not whole is {cut[0]}"
    )


def _damaged_header(start: bytes, header_bytes: int, found_bytes: int) -> str | None:
    if start == b"version ":
        return "it is no weight file but a pointer of Git LFS; fetch it with git lfs pull"
    if len(start) < _LENGTH_BYTES:
        return f"it is cut off: {found_bytes} bytes, no header"
    if header_bytes > _MOST_HEADER_BYTES:
        return None
    needed_bytes = _LENGTH_BYTES + header_bytes
    return f"it is cut off inside the header: {found_bytes} bytes of {needed_bytes}"


def _stops(header: object) -> list[tuple[int, str]]:
    """Return where each tensor ends behind the header, in the order of the file."""
    stops = []
    for name, entry in header.items() if isinstance(header, dict) else ():
        match entry:
            case {"data_offsets": [int(), int(stop)]}:
                stops.append((stop, name))
    return sorted(stops)
