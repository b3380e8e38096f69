"""The state of a model that PyTorch alone trains: restored, taken away, given to another engine.

What is written knows no layout and no engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_layout_table import LOSS_BOUND
from test_training_state import STOP, assert_equal, course, run, whole
from training_messages import Case, Course, Updated

from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

__all__ = ["course"]
ARCHON: Mapping[str, TrainLayout] = {
    "d2": TrainLayout(dp=2),
    "t2": TrainLayout(tp=2),
    "c2": TrainLayout(cp=2),
    "d2t2": TrainLayout(dp=2, tp=2),
    "t4, more than key-value heads": TrainLayout(tp=4),
}


def case_of(backend: Literal["megatron", "archon", "fsdp"], **sizes: int) -> Case:
    """Return a case without a folder."""
    return Case(folder="", layout=TrainLayout(**sizes), backend=backend)


RELAYS: Mapping[str, list[Case]] = {
    # Cut by two networks of our own, and by that of transformers.
    "qwen2": [
        case_of("megatron", tp=2),
        # More ranks than key-value heads.
        case_of("archon", tp=4),
        case_of("archon", dp=2, tp=2),
        case_of("archon", cp=2),
        case_of("fsdp", dp=2, tp=2),
        case_of("fsdp", dp=2),
    ],
    "qwen3_moe": [
        case_of("megatron", dp=2, ep=2),
        case_of("archon", dp=2, ep=2),
        case_of("archon", tp=2, ep=2),
    ],
    # Of no other engine.
    "starcoder2": [
        case_of("fsdp", dp=2, tp=2),
        case_of("fsdp", dp=2),
        case_of("fsdp", cp=2),
        case_of("fsdp", tp=2),
        case_of("fsdp"),
    ],
}
"""By the family: those that take a checkpoint over, one from the other."""
SHORT_RELAYS: Mapping[str, list[int]] = {
    "qwen2": [0, 1, 4],
    "qwen3_moe": [0, 2],
    "starcoder2": [0, 2],
}
"""Of each relay the cases of the short suite: each engine, and each dimension that is cut."""


@pytest.fixture
def folder(random_model_of: Callable[..., Path]) -> str:
    return str(random_model_of("qwen2"))


@pytest.mark.parametrize(
    ("name", "bf16"),
    at_night_but([("d2t2", True)], product(ARCHON, [False, True])),
)
def test_updates_behind_a_restored_state_are_those_of_a_run_that_never_stopped(
    name: str,
    bf16: bool,
    folder: str,
    course: Course,
    forked_workers: ForkedWorkers,
    tmp_path: Path,
) -> None:
    case = Case(folder=folder, layout=ARCHON[name], bf16=bf16, backend="archon")
    straight = run(forked_workers, "save", case, course, tmp_path)
    resumed = run(forked_workers, "load", case, course, tmp_path)
    for ours, theirs in zip(resumed, straight, strict=True):
        assert ours.metrics == theirs.metrics[STOP:]
        assert_equal(ours.weights, theirs.weights)
        assert ours.written == theirs.written


@pytest.mark.parametrize(
    ("family", "every_case"),
    at_night_but([("qwen2", False)], product(RELAYS, [False, True])),
)
def test_what_one_engine_wrote_others_go_on_with_and_the_first_one_again(
    family: str,
    every_case: bool,
    random_model_of: Callable[..., Path],
    course: Course,
    forked_workers: ForkedWorkers,
    tmp_path: Path,
) -> None:
    folder = str(random_model_of(family))
    taken = RELAYS[family] if every_case else [RELAYS[family][at] for at in SHORT_RELAYS[family]]
    first, *others = (replace(case, folder=folder) for case in taken)
    straight = run(forked_workers, "save", first, course, tmp_path)
    written, expected = tmp_path, straight[first.layout.leaders[0]].metrics[STOP:]
    for case in [*others, first]:
        resumed = run(forked_workers, "load", case, course, written)
        # Each writes what it has taken over, before it goes on.
        written /= "again"
        assert_equal(whole(written), whole(tmp_path))
        found = resumed[case.layout.leaders[0]].metrics
        for ours, theirs in zip(found, expected, strict=True):
            assert ours["lr"] == pytest.approx(theirs["lr"], rel=1e-12)
            assert ours["policy_loss"] == pytest.approx(theirs["policy_loss"], abs=LOSS_BOUND)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
    for ours, theirs in zip(resumed, straight, strict=True):
        assert_equal(ours.weights, theirs.weights)


@pytest.mark.parametrize("name", at_night_but(["d2"], ARCHON))
def test_leaving_the_device_behind_each_update_changes_no_bit(
    name: str, folder: str, course: Course, forked_workers: ForkedWorkers
) -> None:
    cases = [Case(folder=folder, layout=ARCHON[name], backend="archon")]
    stays, moves = (
        forked_workers.run(
            "training_probe:updates",
            cases,
            replace(course, swap=swap),
            ranks=ARCHON[name].world_size,
        )
        for swap in (False, True)
    )
    for (stayed,), (moved,) in zip(stays, moves, strict=True):
        assert moved.metrics == stayed.metrics
        assert_equal(moved.weights, stayed.weights)
        assert moved.device_bytes == [0] * len(course.minibatches)


def test_what_is_made_again_is_what_was_there_to_the_bit(
    folder: str, course: Course, forked_workers: ForkedWorkers
) -> None:
    kept = Case(folder=folder, layout=TrainLayout(dp=2), backend="archon")
    modes = (
        ArchonConfig(ac_mode="full"),
        ArchonConfig(ac_mode="selective"),
        ArchonConfig(ac_mode="selective", selective_ac_option="2"),
    )
    cases = [kept, *(replace(kept, settings={"archon": mode}) for mode in modes)]
    found: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", cases, course, ranks=2
    )
    for one, *others in found:
        for mode, other in zip(modes, others, strict=True):
            assert one.metrics == other.metrics, mode
            assert_equal(one.weights, other.weights)
