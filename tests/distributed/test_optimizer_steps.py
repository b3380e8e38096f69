"""Which optimizer steps are taken, and at which learning rate."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_training import LOSS, OPTIMIZER, hugging_face, minibatches
from training_messages import Case, Course, Trial, Updated

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Minibatch
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.training.planning import Storage, planning_of

pytestmark = pytest.mark.distributed

PEAK = 1e-2
SCALARS = 64
"""Bytes of a step's numbers, such as the gradient norm."""


def course(minibatches: list[Minibatch], changes: Mapping[str, Any]) -> Course:
    return Course(
        minibatches=minibatches,
        loss=LOSS,
        optimizer={**OPTIMIZER, **changes},
        micro_batching=MicroBatching(sequences=2),
    )


def test_the_learning_rate_begins_at_its_peak_or_rises_to_it_and_never_begins_or_ends_at_zero(
    forked_workers: ForkedWorkers, random_model: Callable[[bool], Path]
) -> None:
    folder = random_model(True)
    (update, _) = minibatches(hugging_face(folder))
    schedules: list[tuple[Mapping[str, Any], list[float]]] = [
        ({"lr_decay_style": "linear", "updates": 4}, [1, 3 / 4, 1 / 2, 1 / 4]),
        ({"lr_decay_style": "linear", "updates": 1}, [1]),
        ({"lr_decay_style": "constant", "updates": 2}, [1, 1]),
        # Half the way up, the peak, and down from there.
        (
            {"lr_decay_style": "linear", "updates": 4, "lr_warmup_fraction": 0.25},
            [1 / 2, 1, 2 / 3, 1 / 3],
        ),
        (
            {"lr_decay_style": "linear", "updates": 4, "min_lr": PEAK / 2},
            [1, 7 / 8, 3 / 4, 5 / 8],
        ),
        (
            {"lr_decay_style": "constant", "updates": 4, "lr_warmup_fraction": 0.75},
            [1 / 4, 1 / 2, 3 / 4, 1],
        ),
    ]
    courses = [
        (Case(folder=str(folder)), course([update] * len(shares), changes))
        for changes, shares in schedules
    ]
    (found,) = forked_workers.run("training_probe:trials", courses, update)
    trials: list[Trial] = found
    for trial, (changes, shares) in zip(trials, schedules, strict=True):
        rates = [metrics["lr"] / PEAK for metrics in trial.metrics]
        assert rates == pytest.approx(shares), changes


@pytest.mark.parametrize(
    ("family", "layout", "bf16", "sharded"),
    [
        ("qwen2", TrainLayout(dp=2), True, True),
        ("qwen2", TrainLayout(tp=2), False, False),
        ("qwen3_moe", TrainLayout(dp=2, ep=2), False, True),
    ],
    ids=["dp2-bfloat16-sharded", "tp2", "experts-ep2-sharded"],
)
def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all_and_leaves_no_trace(
    family: str,
    layout: TrainLayout,
    bf16: bool,
    sharded: bool,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
) -> None:
    (good, _) = minibatches(hugging_face(random_model_of("qwen2")))
    advantages_BT = good.advantages_BT.clone()
    # Of a sequence that the first of two replicas has.
    advantages_BT[0, 4] = torch.nan
    bad = replace(good, advantages_BT=advantages_BT)
    cases = [Case(folder=str(random_model_of(family)), layout=layout, bf16=bf16)]

    def taken(updates: list[Minibatch]) -> list[Updated]:
        # A schedule that would show a step too many.
        schedule = {"lr_decay_style": "linear", "updates": 4}
        asked = course(updates, {**schedule, "use_distributed_optimizer": sharded})
        replies: list[list[Updated]] = forked_workers.run(
            "training_probe:updates", cases, asked, ranks=2
        )
        return [reply[0] for reply in replies]

    found = taken([bad, good, bad, good])
    # Both ranks of one replica have its loss.
    had = ["nonfinite/loss" in each.metrics[0] for each in found]
    assert had == [True, layout.tp == 2]
    for skipping, plain in zip(found, taken([good, good]), strict=True):
        assert [metrics["skipped"] for metrics in skipping.metrics] == [1.0, 0.0, 1.0, 0.0]
        assert skipping.metrics[1::2] == plain.metrics
        assert plain.metrics[0] != plain.metrics[1]
        for name, tensor in plain.weights.items():
            assert torch.equal(skipping.weights[name], tensor), name


@pytest.mark.parametrize(
    ("family", "layout", "bf16", "sharded"),
    at_night_but(
        [("qwen2", TrainLayout(), False, False)],
        [
            ("qwen2", TrainLayout(), False, False),
            ("qwen3_moe", TrainLayout(), True, True),
            ("qwen2", TrainLayout(dp=2), True, True),
            ("qwen3_moe", TrainLayout(dp=2, ep=2), False, True),
        ],
    ),
)
def test_a_step_makes_room_for_a_few_tensors_at_a_time_on_a_device_too_as_planned(
    family: str,
    layout: TrainLayout,
    bf16: bool,
    sharded: bool,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
) -> None:
    folder, planning = str(random_model_of(family)), planning_of("megatron")
    asked = course([], {"use_distributed_optimizer": sharded})
    case = Case(folder=folder, layout=layout, bf16=bf16)
    found = forked_workers.run("memory_probe:step_bytes", case, asked, ranks=layout.world_size)
    storage = Storage(dtype="bfloat16" if bf16 else "float32")
    sharding = planning.sharding(read_description(folder), layout, storage)
    planned = planning.trained_bytes(sharding, layout, distributed_optimizer=sharded)
    for (whole, largest, most), rank in zip(found, planned, strict=True):
        # The plan counts the second largest tensor as the one before the largest.
        assert 2 * largest < most <= rank.step + SCALARS
        assert rank.step <= 3 * largest < whole
