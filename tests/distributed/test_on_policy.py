"""The first update of a policy needs no pass before it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_training_layouts import OPTIMIZER, minibatches
from training_messages import LOSS, BothWays, Case, Course

from mindrl.batch.balance import MicroBatching
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

CASES = {
    1: [Case(folder=""), Case(folder="", settings={"removes_padding": False})],
    2: [
        Case(folder="", layout=TrainLayout(tp=2)),
        Case(folder="", layout=TrainLayout(tp=2), sequence_parallel=True, bf16=True),
        Case(folder="", layout=TrainLayout(dp=2)),
        Case(folder="", layout=TrainLayout(cp=2)),
        Case(folder="", layout=TrainLayout(pp=2)),
    ],
}


@pytest.mark.parametrize("family", at_night_but(["qwen2"], ["qwen2", "qwen3", "qwen3_moe"]))
@pytest.mark.parametrize("ranks", at_night_but([1], [1, 2]))
def test_an_update_that_finds_its_old_log_probs_is_the_one_that_is_given_them_to_the_bit(
    ranks: int,
    family: str,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
) -> None:
    folder = str(random_model_of(family))
    course = Course(
        minibatches=minibatches(folder, count=1),
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )
    cases = [replace(case, folder=folder) for case in CASES[ranks]]
    replies: list[list[BothWays]] = forked_workers.run(
        "on_policy_probe:both_ways", cases, course, ranks=ranks
    )
    for index, case in enumerate(cases):
        for found in (reply[index] for reply in replies):
            assert found.same_logprobs, case
            (theirs, before), (ours, after) = found.recomputed, found.found
            assert ours == theirs, case
            assert ours["grad_norm"] > 0
            assert all(torch.equal(after[name], before[name]) for name in before), case
    heads = [reply[0].found[0] for reply in replies if "ratio" in reply[0].found[0]]
    # Weights add to 1, to a rounding.
    assert all(abs(metrics["ratio"] - 1) < 1e-6 for metrics in heads)
    assert {metrics["kl_old"] for metrics in heads} == {0.0}
