"""Pipelines of the torch-native engine, where packs do not fit them, and what their ends share.

That each schedule computes what one process does is shown with all layouts: test_archon_layouts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_archon_layouts import SCHEDULES
from test_layout_table import LOSS_BOUND, loss_of
from test_training_layouts import LOSS, OPTIMIZER, minibatches, sequences
from test_training_state import STOP, assert_equal, course, run, whole
from training_messages import Case, Course, Life

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

__all__ = ["course"]
MakeModel = Callable[..., Path]
LOGPROB_BOUND = 1e-5
"""Log-probs of size 10, float32."""
LOOP, V = TrainLayout(pp=2, vpp=2), TrainLayout(pp=2, vpp=2, folds=True)

DENSE = Case(folder="", layout=TrainLayout(dp=2, tp=2), sequence_parallel=True)
MIXTURE = Case(folder="", layout=replace(LOOP, dp=2, ep=2), settings={"archon": SCHEDULES["IZB"]})
TWICE: Mapping[str, tuple[str, Case]] = {
    "dense": ("qwen3", DENSE),
    "mixture": ("qwen3_moe", MIXTURE),
    "mixture, bfloat16": ("qwen3_moe", replace(MIXTURE, bf16=True)),
}


def learning_of(folder: str, sequences_of_pack: int) -> Course:
    return Course(
        minibatches=minibatches(folder, 2),
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": 2},
        micro_batching=MicroBatching(sequences=sequences_of_pack),
    )


def odd_cases(folder: str) -> Iterator[tuple[Case, int]]:
    """Yield four ranks, and sequences of a pack."""
    schedules: list[tuple[TrainLayout, ArchonConfig]] = [
        (TrainLayout(pp=2), ArchonConfig()),
        (LOOP, SCHEDULES["I1F1B"]),
        (LOOP, SCHEDULES["IZB"]),
        (V, SCHEDULES["ZBV"]),
    ]
    for layout, schedule in schedules:
        case = Case(folder=folder, layout=replace(layout, dp=2), settings={"archon": schedule})
        # Five packs on one replica and three on the other; one pack.
        yield replace(case, shares=(5, 3)), 1
        yield case, 4
    # Three packs for four stages.
    yield Case(folder=folder, layout=TrainLayout(pp=4)), 3


@pytest.mark.nightly
def test_packs_that_no_schedule_takes_and_unequal_shares_are_read_and_learned_alike(
    random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    folder = str(random_model_of("qwen3", spread=0.1))
    ((alone,),) = forked_workers.run(
        "archon_probe:lives", [(Case(folder=folder), learning_of(folder, 2))], sequences()
    )
    cases = list(odd_cases(folder))
    replies: list[list[Life]] = forked_workers.run(
        "archon_probe:lives",
        [(case, learning_of(folder, size)) for case, size in cases],
        sequences(),
        ranks=4,
    )
    for index, (case, _) in enumerate(cases):
        found, leaders = [reply[index] for reply in replies], case.layout.leaders
        read = [found[rank].logprobs_BT for rank in leaders]
        expected = alone.logprobs_BT.split([len(read_BT) for read_BT in read])
        for read_BT, alone_BT in zip(read, expected, strict=True):
            # A share is as wide as its longest sequence.
            gap_BT = read_BT - alone_BT[:, : read_BT.size(1)]
            assert gap_BT.abs().max() <= LOGPROB_BOUND, case
        for life in found:
            for ours, theirs in zip(life.metrics, alone.metrics, strict=True):
                assert abs(ours["grad_norm"] / theirs["grad_norm"] - 1) <= LOSS_BOUND, case
        for step, theirs in enumerate(alone.metrics):
            losses = [loss_of(found[rank].metrics[step]) for rank in leaders]
            assert losses == [losses[0]] * len(leaders), case
            assert abs(losses[0] - loss_of(theirs)) <= LOSS_BOUND, case
        has_head = [
            place["pp"] == case.layout.last_stage for place in case.layout.dense_order.coordinates
        ]
        assert [life.logprobs_BT is not None for life in found] == has_head
        assert ["policy_loss" in life.metrics[0] for life in found] == has_head


@pytest.mark.parametrize("layout", [TrainLayout(pp=2), V], ids=["loop", "V"])
def test_a_tied_head_stays_the_embedding_to_the_bit(
    layout: TrainLayout, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    folder = str(random_model_of("qwen2", tied=True))
    schedule = SCHEDULES["ZBV"] if layout.folds else ArchonConfig()
    case = Case(folder=folder, layout=layout, settings={"archon": schedule})
    (begin,), (end,) = forked_workers.run(
        "archon_probe:lives", [(case, learning_of(folder, 2))], sequences(), ranks=2
    )
    last = begin if layout.folds else end
    assert ("lm_head.weight" in begin.weights) == layout.folds
    assert torch.equal(begin.weights["model.embed_tokens.weight"], last.weights["lm_head.weight"])


@pytest.mark.parametrize("kind", at_night_but(["mixture, bfloat16"], TWICE))
def test_equal_runs_are_equal_to_the_bit(
    kind: str, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    family, case = TWICE[kind]
    folder = str(random_model_of(family))
    asked = [(replace(case, folder=folder), learning_of(folder, 2))] * 2
    for one, other in forked_workers.run("archon_probe:lives", asked, sequences(), ranks=4):
        assert one.metrics == other.metrics
        assert_equal(one.weights, other.weights)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["IZB", "ZBV"])
def test_compiled_layers_learn_alike_where_the_schedule_goes_backward_in_two_parts(
    name: str, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    folder = str(random_model_of("qwen3", spread=0.1))
    layout, schedule = V if name == "ZBV" else LOOP, SCHEDULES[name]
    plain = Case(folder=folder, layout=layout, settings={"archon": schedule})
    compiled = replace(plain, settings={"archon": replace(schedule, enable_compile=True)})
    # Packs of 2 to 22 tokens.
    asked = [(case, learning_of(folder, 1)) for case in (plain, compiled)]
    for one, other in forked_workers.run("archon_probe:lives", asked, sequences(), ranks=2):
        assert one.graphs == 0 < other.graphs
        for ours, theirs in zip(other.metrics, one.metrics, strict=True):
            assert abs(ours["grad_norm"] / theirs["grad_norm"] - 1) <= LOSS_BOUND
            if "policy_loss" in theirs:
                assert abs(loss_of(ours) - loss_of(theirs)) <= LOSS_BOUND


@pytest.mark.parametrize("backend", ["archon", "megatron"])
def test_a_state_of_stages_and_back_is_written_once_and_goes_on(
    backend: Literal["archon", "megatron"],
    random_model_of: MakeModel,
    course: Course,
    forked_workers: ForkedWorkers,
    tmp_path: Path,
) -> None:
    folder = str(random_model_of("qwen2", tied=True))
    settings = {"archon": SCHEDULES["ZBV"]}
    there = Case(folder=folder, layout=V, backend="archon", settings=settings)
    straight = run(forked_workers, "save", there, course, tmp_path)
    here = there if backend == "archon" else Case(folder=folder, layout=LOOP)
    resumed = run(forked_workers, "load", here, course, tmp_path)
    assert_equal(whole(tmp_path / "again"), whole(tmp_path))
    if here is there:
        for ours, theirs in zip(resumed, straight, strict=True):
            assert ours.metrics == theirs.metrics[STOP:]
            assert_equal(ours.weights, theirs.weights)
