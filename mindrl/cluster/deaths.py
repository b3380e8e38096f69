"""Causes of a worker's death, as far as its machine knows them."""

import time

from mindrl.cluster.group_watch import GroupWatch
from mindrl.cluster.prefork import PreforkServer
from mindrl.cluster.worker_process import Identity

_RECORD_SECONDS = 1.0
"""Longest wait for the prefork server to record how a process ended."""
_MEMORY_MONITOR = "low on memory"
"""Part of Ray's error if Ray's memory monitor has ended a worker."""


def death_of(
    rank: int,
    identity: Identity | None,
    prefork: PreforkServer | None,
    watch: GroupWatch | None,
    ray_error: str = "",
) -> str:
    """Return how the process of a rank ended: its signal, and signs of a lack of memory.

    The signal is known for workers forked by the prefork server. `ray_error` is the text of
    Ray's error.
    """
    how = None
    if prefork is not None and identity is not None:
        deadline = time.monotonic() + _RECORD_SECONDS
        while (how := prefork.ending_of(identity.process.pid)) is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    causes = [] if watch is None else [watch.out_of_memory(rank)]
    if _MEMORY_MONITOR in ray_error:
        causes.append("Ray ended it because the node was low on memory")
    return "; ".join([f"died: its process {how or 'is gone'}", *filter(None, causes)])
