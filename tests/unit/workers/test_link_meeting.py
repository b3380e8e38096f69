"""Ranks that wait for each other in a store ask it little, also while some are missing."""

from collections.abc import Sequence
from queue import Queue
from threading import Event
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from mindrl.errors import ReshardError
from mindrl.platform.rendezvous import CALLED_OFF
from mindrl.workers import link_meeting
from mindrl.workers.link_meeting import missing_ranks, unless_called_off


class CountingStore:
    """A store that counts its checks for ranks, and announces a rank at one of its looks."""

    def __init__(self, here: Sequence[int], late: int | None = None) -> None:
        self.store, self.late = HashStore(), late
        self.looks = self.checks = 0
        for rank in here:
            self.store.set(f"here {rank}", "")

    def wait(self, keys: Sequence[str], limit: Any) -> None:
        self.looks += 1
        if self.looks == 3 and self.late is not None:
            self.store.set(f"here {self.late}", "")
        self.store.wait(keys, limit)

    def check(self, keys: Sequence[str]) -> bool:
        self.checks += keys[0].startswith("here")
        return self.store.check(keys)


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_meeting, "_LOOK_SECONDS", 0.01)


@pytest.mark.parametrize("away", [[5], [0, 1], [63]])
def test_missing_ranks_are_looked_for_only_when_the_time_is_over(away: list[int]) -> None:
    store: Any = CountingStore([rank for rank in range(64) if rank not in away])
    assert missing_ranks(store, 64, 0.5) == away
    assert store.looks > 2
    # Of 64 ranks, then in each of 6 steps of two halves; ranks 0 and 1 differ in the last.
    assert store.checks == 1 + 6 * 2


def test_a_rank_that_joins_late_is_waited_for_without_a_question_for_each_rank() -> None:
    store: Any = CountingStore(range(63), late=63)
    assert missing_ranks(store, 64, 60) == []
    assert (store.looks, store.checks) == (3, 0)


def test_a_group_that_was_called_off_is_left_once_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, left, store, group = Event(), Queue[object](), HashStore(), object()
    monkeypatch.setattr(link_meeting, "leave_group", left.put)
    store.set(CALLED_OFF, "it is gone")

    def make() -> Any:
        assert made.wait(60)
        return group

    with pytest.raises(ReshardError, match="it is gone"):
        unless_called_off(store, make)
    assert left.empty()
    made.set()
    assert left.get(timeout=60) is group


def test_a_group_that_cannot_be_made_raises_its_own_error() -> None:
    def make() -> Any:
        raise RuntimeError("connection refused")

    with pytest.raises(RuntimeError, match="connection refused"):
        unless_called_off(HashStore(), make)
