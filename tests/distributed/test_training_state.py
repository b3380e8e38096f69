"""Main weights, moments and counts of updates, written by logical names and read by any layout."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from safetensors.torch import load_file
from state_messages import Kept
from test_training import LOSS, OPTIMIZER, hugging_face, minibatches
from test_training_latent import MODELS, save_random
from torch import Tensor
from training_messages import Case, Course

from mindrl.batch.balance import MicroBatching
from mindrl.checkpoint.commits import Commits, checksum_of
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description

pytestmark = pytest.mark.distributed

UPDATES, STOP = 4, 2


@pytest.fixture
def course(random_model_of: Callable[..., Path]) -> Course:
    (good, _) = minibatches(hugging_face(random_model_of("qwen2")))
    updates = [
        replace(good, advantages_BT=good.advantages_BT * (1 + step)) for step in range(UPDATES)
    ]
    return Course(
        minibatches=updates,
        loss=LOSS,
        # A schedule that tells one update from another.
        optimizer={**OPTIMIZER, "lr_decay_style": "linear", "updates": UPDATES + 1},
        micro_batching=MicroBatching(sequences=2),
    )


def run(
    workers: ForkedWorkers, function: str, case: Case, course: Course, folder: Path
) -> list[Kept]:
    ranks = case.layout.world_size
    return workers.run(f"state_probe:{function}", case, course, str(folder), STOP, ranks=ranks)


def whole(folder: Path) -> dict[str, Tensor]:
    """Put the slices of all files together, and assert that no element is in two of them."""
    slices: dict[str, list[tuple[tuple[slice, ...], Tensor]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            key, _, box = name.rpartition(" ")
            bounds = (map(int, each.split(":")) for each in box.split(","))
            slices.setdefault(key, []).append((tuple(slice(*each) for each in bounds), tensor))
    found = {}
    for key, parts in slices.items():
        shape = [max(part[0][dim].stop for part in parts) for dim in range(parts[0][1].dim())]
        tensor, times = torch.zeros(shape), torch.zeros(shape)
        for index, values in parts:
            tensor[index] = values
            times[index] += 1
        assert (times == 1).all(), key
        found[key] = tensor
    return found


def assert_equal(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


SAME_EVERY_CHANGE = ("dp2-bfloat16-sharded",)
CHANGED_EVERY_CHANGE = ("tp2-to-dp2", "ep2-to-tp2")
SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tp2": ("qwen2", {"tp": 2}, {}),
    "dp2-bfloat16-sharded": ("qwen2", {"dp": 2}, {"bf16": True}),
    "dp2-bfloat16-whole": ("qwen2", {"dp": 2}, {"bf16": True, "sharded": False}),
    "pp2-tied": ("qwen2-tied", {"pp": 2}, {}),
    "experts-ep2-bfloat16": ("qwen3_moe", {"dp": 2, "ep": 2}, {"bf16": True}),
    "latent-tp2": ("latent", {"tp": 2}, {}),
}


@pytest.fixture(scope="module")
def latent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture with latent attention, whose down projections each rank has whole."""
    folder = tmp_path_factory.mktemp("latent")
    save_random(MODELS["V3"], folder)
    return folder


@pytest.fixture
def case_of(random_model_of: Callable[..., Path], latent_model: Path) -> Callable[..., Case]:
    def make(name: str, layout: Mapping[str, int], *, bf16: bool = False) -> Case:
        family, _, tied = name.partition("-")
        folder = latent_model
        if family != "latent":
            folder = random_model_of(family, tied=bool(tied))
        return Case(folder=str(folder), layout=TrainLayout(**layout), bf16=bf16)

    return make


@pytest.mark.parametrize("name", at_night_but(SAME_EVERY_CHANGE, SAME))
def test_updates_behind_a_restored_state_are_those_of_a_run_that_never_stopped(
    name: str,
    forked_workers: ForkedWorkers,
    case_of: Callable[..., Case],
    course: Course,
    tmp_path: Path,
) -> None:
    model, layout, more = SAME[name]
    case = case_of(model, layout, bf16=more.get("bf16", False))
    optimizer = {**course.optimizer, "use_distributed_optimizer": more.get("sharded", True)}
    course = replace(course, optimizer=optimizer)
    straight = run(forked_workers, "save", case, course, tmp_path)
    resumed = run(forked_workers, "load", case, course, tmp_path)
    for ours, theirs in zip(resumed, straight, strict=True):
        assert ours.metrics == theirs.metrics[STOP:]
        assert_equal(ours.weights, theirs.weights)
        # Each rank writes what it wrote before.
        assert ours.written == theirs.written
        assert checksum_of(tmp_path / theirs.written.name) == theirs.written.checksum
    assert straight[0].metrics[STOP] != straight[0].metrics[0]
    description = read_description(case.folder)
    shapes = logical_shapes(description)
    state = whole(tmp_path)
    squares = [moment for name, moment in state.items() if name.startswith("exp_avg_sq ")]
    assert all((moment >= 0).all() for moment in squares)
    for tensor, shape in shapes.items():
        for kind in ("weight", "exp_avg", "exp_avg_sq"):
            if kind == "weight" or not re.search(r"e_score_correction_bias", tensor):
                assert state[f"{kind} {tensor}"].shape == shape


CHANGED = {
    "tp2-to-dp2": ("qwen2", {"tp": 2}, {"dp": 2}),
    "dp2-to-tp2": ("qwen2", {"dp": 2}, {"tp": 2}),
    "pp2-to-dp2": ("qwen2-tied", {"pp": 2}, {"dp": 2}),
    "ep2-to-dp2": ("qwen3_moe", {"dp": 2, "ep": 2}, {"dp": 2}),
    "ep2-to-tp2": ("qwen3_moe", {"dp": 2, "ep": 2}, {"tp": 2}),
    "2-to-1": ("qwen2", {"dp": 2}, {}),
    "2-to-4": ("qwen2", {"dp": 2}, {"tp": 2, "dp": 2}),
    "latent-tp2-to-pp2": ("latent", {"tp": 2}, {"pp": 2}),
}


@pytest.mark.parametrize("name", at_night_but(CHANGED_EVERY_CHANGE, CHANGED))
def test_another_layout_takes_every_weight_and_moment_over_to_the_bit(
    name: str,
    forked_workers: ForkedWorkers,
    case_of: Callable[..., Case],
    course: Course,
    tmp_path: Path,
) -> None:
    model, before, after = CHANGED[name]
    saved = run(forked_workers, "save", case_of(model, before), course, tmp_path)
    loaded = run(forked_workers, "load", case_of(model, after), course, tmp_path)
    assert_equal(whole(tmp_path / "again"), whole(tmp_path))
    # Only the last stage knows the loss.
    theirs = saved[-1].metrics[STOP:]
    for ours, straight in zip(loaded[-1].metrics, theirs, strict=True):
        loss, bound = "policy_loss", 2e-6 if model == "latent" else 1e-6
        assert ours[loss] == pytest.approx(straight[loss], rel=bound)
        # Norms and divergences sum up more.
        assert ours == pytest.approx(straight, rel=1e-5, abs=1e-6)


def test_behind_no_update_the_weights_of_a_checkpoint_are_taken_and_the_optimizer_is_new(
    forked_workers: ForkedWorkers,
    case_of: Callable[..., Case],
    course: Course,
    tmp_path: Path,
) -> None:
    case, commits = case_of("qwen2", {"dp": 2}, bf16=True), Commits(tmp_path)
    saved = run(forked_workers, "save", case, course, commits.begin(3))
    folder = commits.commit(3, [each.written for each in saved], {}).folder
    loaded = run(forked_workers, "begin_anew", case, course, folder)
    theirs = whole(folder)
    for name, ours in whole(folder / "again").items():
        is_weight = name.startswith("weight ")
        assert torch.equal(ours, theirs[name] if is_weight else torch.zeros_like(ours)), name
    rates = [each["lr"] for each in saved[-1].metrics]
    assert loaded[-1].metrics[0]["lr"] == rates[0] != rates[STOP]
