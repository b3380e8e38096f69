"""Bytes in the units that people read."""

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"))


def memory_text(nbytes: int) -> str:
    """Spell bytes in GiB, or in MiB where they are fewer."""
    size, unit = unit_of(nbytes)
    return f"{nbytes / size:,.2f} {unit}"


def unit_of(nbytes: int) -> tuple[int, str]:
    """Return the bytes of the unit that suits a size, and its name."""
    return next((each for each in _UNITS if nbytes >= each[0]), _UNITS[-1])
