"""The ways that the benchmark of the batches puts side by side."""

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from mindrl.batch.rollouts import Rollouts

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_tensors_and_tuples_become_the_same_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "bench_batches", raising=False)
    bench = import_module("bench_batches")
    step = bench.drawn_step(sequences=16, tokens=8)
    now = bench.batch_now(step, bench.answers_now(step))
    former = bench.batch_former(step, bench.answers_former(step, 2), 2)
    assert now.lengths_B.unique().numel() > 1
    assert now.ages_BT is former.ages_BT is None
    assert now.turn_rewards_BT is former.turn_rewards_BT is None
    for column in {*Rollouts.__slots__} - {"ages_BT", "turn_rewards_BT", "conversation_B"}:
        assert torch.equal(getattr(now, column), getattr(former, column)), column
