"""Ranks compare their plans through a store, before the first byte is sent."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from mindrl.errors import ReshardError
from mindrl.resharding import exchange
from mindrl.resharding.exchange import Channel

PLAN, OTHER = b"one plan", b"another plan"


class CountingStore:
    """A store that counts the values that it is asked for."""

    def __init__(self) -> None:
        store = HashStore()
        self.set, self.wait, self.check, self.store = store.set, store.wait, store.check, store
        self.asked: list[str] = []

    def get(self, key: str) -> bytes:
        self.asked.append(key)
        return self.store.get(key)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]


def agreed(plans: Sequence[bytes | None], store: CountingStore, seconds: float) -> list[str]:
    """Return the error of each rank that takes part, empty without one; None stays away."""

    def of_rank(rank: int, plan: bytes) -> str:
        group: Any = SimpleNamespace(rank=lambda: rank, size=lambda: len(plans))
        shared: Any = store
        try:
            Channel(group, shared, torch.device("cpu"), seconds).agree(plan)
        except ReshardError as error:
            return str(error)
        return ""

    here = [(rank, plan) for rank, plan in enumerate(plans) if plan is not None]
    with ThreadPoolExecutor(len(here)) as pool:
        return [*pool.map(lambda each: of_rank(*each), here)]


@pytest.mark.parametrize("ranks", [2, 64, 256])
def test_equal_plans_cost_two_values_a_rank(ranks: int) -> None:
    store = CountingStore()
    assert agreed([PLAN] * ranks, store, 60) == [""] * ranks
    assert len(store.asked) == 2 * ranks


def test_every_rank_names_those_with_another_plan() -> None:
    plans = [PLAN] * 8
    plans[3] = plans[6] = OTHER
    found = "ranks 3, 6 and rank 0 have different reshard plans; no weights were moved"
    assert agreed(plans, CountingStore(), 60) == [found] * 8


@pytest.mark.parametrize("away", [[5], [0], [0, 2]])
def test_every_rank_names_those_that_do_not_answer(
    away: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_REPORT_SECONDS", 1.0)
    plans = [None if rank in away else PLAN for rank in range(6)]
    names = f"rank{'s' if len(away) > 1 else ''} {', '.join(map(str, away))}"
    found = f"{names} did not answer within 2 s; no weights were moved"
    assert agreed(plans, CountingStore(), 2) == [found] * (6 - len(away))
