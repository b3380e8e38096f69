"""Value heads, copies of shards and running engines, with models that PyTorch alone trains."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but, few_unless_night
from test_training import hugging_face, minibatches
from test_training_layouts import LENGTHS, OPTIMIZER, sequences
from test_values import course, valued
from training_messages import LOSS, Case, Course, Updated
from value_messages import Judged, ValueTrial

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

__all__ = ["valued"]
LAYOUTS = {
    "DP2": Case(folder="", layout=TrainLayout(dp=2)),
    "TP2": Case(folder="", layout=TrainLayout(tp=2)),
    "TP2+SP": Case(folder="", layout=TrainLayout(tp=2), sequence_parallel=True),
    "CP2": Case(folder="", layout=TrainLayout(cp=2)),
    "PP2": Case(folder="", layout=TrainLayout(pp=2)),
    "PP2 in a V": Case(
        folder="",
        layout=TrainLayout(pp=2, vpp=2, folds=True),
        settings={"archon": ArchonConfig(pp_schedule="ZBV")},
    ),
}


SHORT = ("DP2", "TP2+SP", "CP2", "PP2 in a V")
"""Each dimension that is cut, once."""


def test_values_rewards_and_updates_are_those_of_one_process_of_megatron(
    valued: Callable[..., str], forked_workers: ForkedWorkers
) -> None:
    folder = valued("qwen3")
    trial = ValueTrial(case=Case(folder=folder), course=course(folder))
    ((one,),) = forked_workers.run("value_probe:judged", [trial], sequences())
    cases = [LAYOUTS[name] for name in few_unless_night(SHORT, LAYOUTS)]
    trials = [replace(trial, case=replace(case, folder=folder, backend="archon")) for case in cases]
    replies: list[list[Judged]] = forked_workers.run(
        "value_probe:judged", trials, sequences(), ranks=2
    )
    for index, case in enumerate(cases):
        assert_judged_alike(case, [reply[index] for reply in replies], one)


def assert_judged_alike(case: Case, ranks: list[Judged], one: Judged) -> None:
    """Compare what ranks say of their shares, and what they learn, with one process of all."""
    for rank, found in enumerate(ranks):
        size = len(LENGTHS) // case.layout.dp
        start = case.layout.replica_of(rank) * size
        rows = slice(start, start + size)
        if case.layout.pp > 1 and rank not in case.layout.leaders:
            assert found.values is None, case
            continue
        assert found.values is not None, case
        assert found.rewards is not None, case
        T = found.values.values_BT.size(1)
        # Values of size 5 in float32.
        torch.testing.assert_close(
            found.values.values_BT, one.values.values_BT[rows, :T], atol=2e-5, rtol=0
        )
        torch.testing.assert_close(
            found.rewards.rewards_B, one.rewards.rewards_B[rows], atol=2e-5, rtol=0
        )
        for ours, theirs in zip(found.metrics, one.metrics, strict=True):
            assert ours["value_loss"] == pytest.approx(theirs["value_loss"], abs=2e-6), case
        first = found.metrics[0]["grad_norm"]
        assert first == pytest.approx(one.metrics[0]["grad_norm"], rel=2e-6), case


def test_a_drawn_head_is_the_same_on_every_rank_and_in_every_engine(
    random_model_of: Callable[..., Path], forked_workers: ForkedWorkers
) -> None:
    folder = str(random_model_of("qwen2", tied=True))
    trial = ValueTrial(case=Case(folder=folder), head_seed=11)
    ((megatron,),) = forked_workers.run("value_probe:judged", [trial], sequences())
    archon = replace(trial, case=replace(trial.case, layout=TrainLayout(tp=2), backend="archon"))
    for (reply,) in forked_workers.run("value_probe:judged", [archon], sequences(), ranks=2):
        assert torch.equal(reply.head, megatron.head)


@pytest.mark.parametrize("fsdp_size", at_night_but([2], [1, 2]))
def test_shards_over_some_ranks_with_copies_on_others_learn_as_shards_over_all(
    fsdp_size: int, random_model_of: Callable[..., Path], forked_workers: ForkedWorkers
) -> None:
    folder = str(random_model_of("qwen2"))
    (minibatch, _) = minibatches(hugging_face(Path(folder)))
    asked = Course(
        minibatches=[minibatch] * 3,
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": 3},
        micro_batching=MicroBatching(sequences=1),
    )
    all_share = Case(folder=folder, layout=TrainLayout(dp=2, tp=2), backend="archon")
    some = replace(all_share, settings={"archon": ArchonConfig(fsdp_size=fsdp_size)})
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", [all_share, some], asked, ranks=4
    )
    sizes = [sum(each.numel() for each in made.weights.values()) for made in replies[0]]
    assert sizes[1] == pytest.approx(sizes[0] * 2 / fsdp_size, rel=0.01)
    for one, other in replies:
        for ours, theirs in zip(other.metrics, one.metrics, strict=True):
            assert ours["policy_loss"] == pytest.approx(theirs["policy_loss"], abs=2e-6)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=2e-6)
