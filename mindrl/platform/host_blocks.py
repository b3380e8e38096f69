"""How the host memory of a worker is cut; without torch, since plans count the same bytes."""

_ALIGNMENT = 512
"""Bytes; copies between device and host like round addresses."""


def rounded(nbytes: int) -> int:
    """Return the bytes that a place on the host takes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def block_sizes(nbytes: int) -> list[int]:
    """Cut memory into powers of two, the largest first, which are no more than `rounded` together.

    The allocators of pinned memory, torch's and torch_npu's, take the next power of two for each
    block: 17.7 GiB in one would take 32.
    """
    places = rounded(nbytes) // _ALIGNMENT
    bits = reversed(range(places.bit_length()))
    return [_ALIGNMENT << bit for bit in bits if places >> bit & 1]
