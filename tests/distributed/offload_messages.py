"""What the tests of the host's copies and their ranks tell each other."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OffloadFacts:
    """What was seen while three tensors over two storages went and came back."""

    out_bytes: int
    bytes_while_out: int
    in_bytes: int
    kept: list[list[float]]
    share_storage: bool
    clean_out_bytes: int
    """Copied where nothing had changed since the region came."""
    after_clean: list[float]
    host_copy: list[float]
    changed_out_bytes: int
    dropped_bytes: int
    arena_bytes: int
    beyond_bytes: int
