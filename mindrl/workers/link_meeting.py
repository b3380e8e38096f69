"""Meeting of a link's ranks in a store, which shows who has joined and if it was called off."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta

import torch.distributed as dist

from mindrl.errors import ReshardError
from mindrl.observability.progress import tick
from mindrl.platform.rendezvous import CALLED_OFF, leave_group
from mindrl.resharding.exchange import keys_of, silent_ranks

_LOOK_SECONDS, _NOW_SECONDS = 0.5, 0.001
_HERE = "here"


def missing_ranks(store: dist.Store, ranks: int, seconds: float) -> list[int]:  # type: ignore[name-defined]
    """Wait until all ranks have joined; return the missing ones.

    Raises:
        ReshardError: The meeting was called off.
    """
    ends, keys = time.monotonic() + seconds, keys_of(_HERE, range(ranks))
    while not _are_set(store, keys, min(_LOOK_SECONDS, seconds)):
        # Report progress: a rank that waits here has its own time limit and does not hang.
        tick()
        if time.monotonic() > ends:
            return silent_ranks(store, _HERE, ranks, _NOW_SECONDS)
        _refuse_called_off(store)
    return []


def _are_set(store: dist.Store, keys: list[str], seconds: float) -> bool:  # type: ignore[name-defined]
    """Wait until all keys are set, in one call of the store; return whether they are."""
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True


def unless_called_off(
    store: dist.Store,  # type: ignore[name-defined]
    make: Callable[[], dist.ProcessGroup],
) -> dist.ProcessGroup:
    """Create a group with ranks that have joined, even if one has ended since.

    With a device's own collective library, ranks connect only at the first message.

    Raises:
        ReshardError: The meeting was called off.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="link")
    making = thread.submit(make)
    thread.shutdown(wait=False)
    try:
        while not wait([making], _LOOK_SECONDS).done:
            tick()
            _refuse_called_off(store)
    except ReshardError:
        making.add_done_callback(_leave_made)
        raise
    return making.result()


def _leave_made(making: Future[dist.ProcessGroup]) -> None:
    if making.exception() is None:
        leave_group(making.result())


def _refuse_called_off(store: dist.Store) -> None:  # type: ignore[name-defined]
    if store.check([CALLED_OFF]):
        raise ReshardError(store.get(CALLED_OFF).decode())
