"""Gradients reduced during the backward pass and weights gathered during the forward pass."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from overlap_messages import Overlapped
from test_offload_exact import TWO_RANKS, run_of
from test_training import LOSS, OPTIMIZER, hugging_face, minibatches
from training_messages import Case, Course

from mindrl.batch.balance import MicroBatching
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.training.planning import Storage, planning_of

pytestmark = pytest.mark.distributed

REDUCES = {"overlap_grad_reduce": True, "ddp_bucket_size": 20_000}
BOTH = REDUCES | {"overlap_param_gather": True}


def courses_of(case: Case, updates: Course, *keys: Mapping[str, Any]) -> list[tuple[Case, Course]]:
    return [
        (case, replace(updates, optimizer={**updates.optimizer, **changes})) for changes in keys
    ]


def taken(
    workers: ForkedWorkers, courses: list[tuple[Case, Course]], ranks: int = 2
) -> list[list[Overlapped]]:
    """Return what each rank did in each course."""
    replies = workers.run("overlap_probe:overlapped", courses, ranks=ranks)
    return [list(of_course) for of_course in zip(*replies, strict=True)]


def assert_equal_runs(found: list[Overlapped], plain: list[Overlapped]) -> None:
    """Compare metrics and weights of all ranks to the bit: a sum of two has one order."""
    for ours, theirs in zip(found, plain, strict=True):
        for one, other in zip(ours.metrics, theirs.metrics, strict=True):
            assert_equal_metrics(one, other)
        assert ours.weights.keys() == theirs.weights.keys()
        for name, tensor in theirs.weights.items():
            assert torch.equal(ours.weights[name], tensor), name


def assert_equal_metrics(ours: dict[str, float], theirs: dict[str, float]) -> None:
    """Compare all to the bit but the norm: each rank sums the squares of another part."""
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-6, nan_ok=True)
    theirs = theirs | {"grad_norm": ours["grad_norm"]}
    assert ours == pytest.approx(theirs, rel=0, abs=0, nan_ok=True)


@pytest.fixture
def updates(random_model: Callable[[bool], Path]) -> Course:
    batches = minibatches(hugging_face(random_model(True)))
    return Course(
        # The second has twice as many micro-batches as the first.
        minibatches=[
            batch.rows(torch.arange(len(batch)).repeat(1 + index % 2))
            for index, batch in enumerate([*batches, *batches][:3])
        ],
        loss=LOSS,
        # Without clipping, which multiplies by the rounded norm.
        optimizer=OPTIMIZER | {"clip_grad": 0.0},
        # Several micro-batches: only the last completes a gradient.
        micro_batching=MicroBatching(sequences=1),
    )


@pytest.mark.parametrize(
    ("tied", "bf16"),
    at_night_but([(True, True)], product((False, True), repeat=2)),
    ids=["untied-float32", "untied-bfloat16", "tied-float32", "tied-bfloat16"],
)
def test_updates_with_overlap_over_two_replicas_are_those_without_it_to_the_bit(
    tied: bool,
    bf16: bool,
    updates: Course,
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
) -> None:
    case = Case(folder=str(random_model(tied)), layout=TrainLayout(dp=2), bf16=bf16)
    courses = courses_of(case, updates, {}, REDUCES, BOTH)
    courses.append((case, replace(courses[-1][1], swap=True)))
    plain, reduces, both, swapped = taken(forked_workers, courses)
    for found in (reduces, both, swapped):
        assert_equal_runs(found, plain)
        for rank in found:
            assert rank.buckets > 4
            # Megatron counts each bucket's gradients in the first update; later ones overlap.
            assert rank.early == [0, rank.buckets, rank.buckets]
    for rank in plain:
        assert rank.early == [0, 0, 0]
    for rank in swapped:
        assert rank.device_bytes == [0, 0, 0]
    # Between two updates a rank has its own part of each weight, and old values of the others.
    for rank in both:
        assert any(not torch.equal(rank.local[name], rank.weights[name]) for name in rank.weights)
    planned = planning_of("megatron")
    storage = Storage(dtype="bfloat16" if bf16 else "float32", grouped_experts=False)
    sharding = planned.sharding(read_description(case.folder), case.layout, storage)
    bytes_of = planned.trained_bytes(
        sharding, case.layout, distributed_optimizer=True, bucket_size=REDUCES["ddp_bucket_size"]
    )
    for rank, planned_rank in zip(both, bytes_of, strict=True):
        expected = (planned_rank.weights, planned_rank.gradients, planned_rank.optimizer)
        assert rank.train_bytes == expected


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("qwen3_moe", TrainLayout(dp=2, ep=2)),
        pytest.param("qwen3", TrainLayout(pp=2, dp=2), marks=pytest.mark.nightly),
        pytest.param("qwen3", TrainLayout(pp=2, dp=2, vpp=2), marks=pytest.mark.nightly),
        pytest.param("qwen3_moe", TrainLayout(tp=2, dp=2, ep=2), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_experts_and_stages_overlap_to_the_same_bits(
    family: str,
    layout: TrainLayout,
    updates: Course,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
) -> None:
    case = Case(folder=str(random_model_of(family)), layout=layout)
    courses = courses_of(case, updates, {}, BOTH)
    plain, both = taken(forked_workers, courses, ranks=layout.world_size)
    assert_equal_runs(both, plain)
    for rank in both:
        assert rank.early[1:] == [rank.buckets] * 2


@pytest.mark.nightly
def test_a_skipped_update_leaves_whole_weights_with_overlap(
    updates: Course, forked_workers: ForkedWorkers, random_model: Callable[[bool], Path]
) -> None:
    case = Case(folder=str(random_model(False)), layout=TrainLayout(dp=2))
    good = updates.minibatches[0]
    advantages_BT = good.advantages_BT.clone()
    # Of a sequence that the first of two replicas has.
    advantages_BT[0, 4] = torch.nan
    bad = replace(good, advantages_BT=advantages_BT)
    course = replace(updates, minibatches=[good, bad, good])
    (both,) = taken(forked_workers, courses_of(case, course, BOTH))
    (plain,) = taken(forked_workers, courses_of(case, course, {}))
    assert_equal_runs(both, plain)
    for rank, had_it in zip(both, (True, False), strict=True):
        assert [metrics["skipped"] for metrics in rank.metrics] == [0.0, 1.0, 0.0]
        assert ("nonfinite/loss" in rank.metrics[1]) == had_it
        assert ("nonfinite/gradient" in rank.metrics[1]) == had_it


def test_rollouts_and_exports_wait_for_weights_that_are_still_gathered(
    forked_workers: ForkedWorkers,
    random_model: Callable[[bool], Path],
    run_config: Callable[..., RunConfig],
    tmp_path: Path,
) -> None:
    model = random_model(False)
    common = TWO_RANKS | {"actor_config.clip_grad": 0.0}
    plain = run_of(forked_workers, run_config(model, common), tmp_path / "plain")
    overlap = {f"megatron_training.{key}": value for key, value in BOTH.items()}
    both = run_of(forked_workers, run_config(model, common | overlap), tmp_path / "both")
    assert both.tokens == plain.tokens
    for ours, theirs in zip(both.metrics, plain.metrics, strict=True):
        assert_equal_metrics(ours["actor"], theirs["actor"])
    assert both.greedy == plain.greedy
    for name, tensor in plain.weights.items():
        assert torch.equal(both.weights[name], tensor), name
        assert not torch.equal(plain.initial[name], tensor), name
