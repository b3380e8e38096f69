"""A network of a user's own, tests/own_models/own_nemotron, in the layouts that its spec names.

One process with transformers' network of the same family says what its updates are to be.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import UPDATES, at_night_but, few_unless_night
from rounding import bound
from test_archon_roles import assert_judged_alike
from test_layout_table import LOGITS_BOUND, LOSS_BOUND, compare, loss_of
from test_training_layouts import LOSS, OPTIMIZER, minibatches, sequences
from test_training_state import STOP, assert_equal, run, whole
from test_values import course as critic_course
from test_values import plain_values, valued
from training_messages import Case, Course, Life, Trial
from transformers import AutoModelForTokenClassification
from value_messages import Judged, ValueTrial

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import Head
from mindrl.models.own_family import own_description
from mindrl.training.planning import Storage, planning_of

pytestmark = pytest.mark.distributed

__all__ = ["valued"]
SPEC = "own_nemotron.spec:SPEC"
LAYOUTS: Mapping[str, Case] = {
    name: Case(folder="", layout=layout, sequence_parallel="SP" in name, spec=SPEC)
    for name, layout in {
        "alone": TrainLayout(),
        "DP2": TrainLayout(dp=2),
        "TP2": TrainLayout(tp=2),
        "TP2+SP": TrainLayout(tp=2),
        "CP2": TrainLayout(cp=2),
        "PP2": TrainLayout(pp=2),
        "PP2 ZBV": TrainLayout(pp=2, vpp=2, folds=True),
        "DP2+TP2+SP": TrainLayout(dp=2, tp=2),
        "PP2+TP2": TrainLayout(pp=2, tp=2),
    }.items()
}
TIED = ("alone", "TP2+SP")
SETTINGS = {
    "PP2 ZBV": {"archon": ArchonConfig(pp_schedule="ZBV")},
    "TP2": {"archon": ArchonConfig(ac_mode="full")},
}


def course_of(folder: str, count: int) -> Course:
    return Course(
        minibatches=minibatches(folder, count),
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": count},
        micro_batching=MicroBatching(sequences=2),
    )


@pytest.fixture(scope="module")
def courses(random_model_of: Callable[..., Path]) -> Mapping[str, Course]:
    """By the folder: with a head of its own first, then tied."""
    folders = (str(random_model_of("nemotron", tied, spread=0.1)) for tied in (False, True))
    return {folder: course_of(folder, UPDATES) for folder in folders}


@pytest.fixture(scope="module")
def transformers(courses: Mapping[str, Course], forked_workers: ForkedWorkers) -> list[Trial]:
    """What one process finds with the network of transformers."""
    asked = [(Case(folder=folder), course) for folder, course in courses.items()]
    (found,) = forked_workers.run("archon_probe:trials", asked, sequences())
    return found


@pytest.mark.parametrize("ranks", at_night_but([1], [1, 2, 4]))
def test_logits_are_hugging_faces_and_updates_those_of_transformers_network(
    ranks: int,
    courses: Mapping[str, Course],
    transformers: list[Trial],
    forked_workers: ForkedWorkers,
) -> None:
    asked, expected = [], []
    for (folder, course), trial in zip(courses.items(), transformers, strict=True):
        for name, case in LAYOUTS.items():
            if case.layout.world_size == ranks and (trial is transformers[0] or name in TIED):
                ours = replace(case, folder=folder, settings=SETTINGS.get(name, {}))
                asked.append((ours, course))
                expected.append(trial)
    replies: list[list[Trial]] = forked_workers.run(
        "archon_probe:trials", asked, sequences(), ranks=ranks
    )
    for index, ((case, _), one) in enumerate(zip(asked, expected, strict=True)):
        row = compare(case.layout, [reply[index] for reply in replies], one, case.folder)
        assert row.logits <= LOGITS_BOUND, case
        assert row.loss <= LOSS_BOUND, case
        assert row.grad_norm <= LOSS_BOUND, case


@pytest.mark.nightly
def test_a_critic_values_as_hugging_faces_does_and_learns_on_two_ranks_as_on_one(
    valued: Callable[..., str], forked_workers: ForkedWorkers
) -> None:
    folder = valued("nemotron")
    learning = critic_course(folder)
    trials = {
        name: ValueTrial(
            case=replace(case, folder=folder, backend="archon", settings=SETTINGS.get(name, {})),
            course=learning,
        )
        for name, case in LAYOUTS.items()
    }
    ((one,),) = forked_workers.run("value_probe:judged", [trials["alone"]], sequences())
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected_BT = plain_values(model, sequences())
    # As of other families: test_values.py.
    torch.testing.assert_close(one.values.values_BT, expected_BT, atol=1e-4, rtol=0)
    two = [name for name, trial in trials.items() if trial.case.layout.world_size == 2]
    names = few_unless_night(("TP2+SP", "CP2", "PP2 ZBV"), two)
    asked = [trials[name] for name in names]
    replies: list[list[Judged]] = forked_workers.run(
        "value_probe:judged", asked, sequences(), ranks=2
    )
    for index, trial in enumerate(asked):
        assert_judged_alike(trial.case, [reply[index] for reply in replies], one)


@pytest.mark.nightly
def test_in_bfloat16_an_update_is_that_of_transformers_network_but_for_rounding(
    courses: Mapping[str, Course], forked_workers: ForkedWorkers
) -> None:
    folder = next(iter(courses))
    course = course_of(folder, 1)
    plain = Case(folder=folder, bf16=True)
    ((expected,),) = forked_workers.run("archon_probe:trials", [(plain, course)], sequences())
    assert compare(TrainLayout(), [expected], expected, folder).logits > LOGITS_BOUND
    names = ("DP2", "TP2+SP", "PP2")
    asked = [(replace(LAYOUTS[name], folder=folder, bf16=True), course) for name in names]
    replies = forked_workers.run("archon_probe:trials", asked, sequences(), ranks=2)
    for index, (case, _) in enumerate(asked):
        row = compare(case.layout, [reply[index] for reply in replies], expected, folder)
        # Of 8 bits.
        assert row.loss <= bound(0.02, without_avx512=0.04) * abs(row.first_loss), case
        assert row.grad_norm <= bound(0.01, without_avx512=0.03), case


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["alone", "TP2+SP", "PP2 ZBV"])
def test_compiled_layers_learn_alike(
    name: str, courses: Mapping[str, Course], forked_workers: ForkedWorkers
) -> None:
    folder = next(iter(courses))
    options = SETTINGS.get(name, {}).get("archon", ArchonConfig())
    plain = replace(LAYOUTS[name], folder=folder, settings={"archon": options})
    compiled = replace(plain, settings={"archon": replace(options, enable_compile=True)})
    asked = [(case, course_of(folder, 3)) for case in (plain, compiled)]
    replies: list[list[Life]] = forked_workers.run(
        "archon_probe:lives", asked, sequences(), ranks=plain.layout.world_size
    )
    for one, other in replies:
        assert one.graphs == 0 < other.graphs
        first, expected = (life.metrics[0]["grad_norm"] for life in (other, one))
        # One kernel adds up in another order than the operations that are in it.
        assert first == pytest.approx(expected, rel=1e-5)
        for ours, theirs in zip(other.metrics, one.metrics, strict=True):
            if "policy_loss" in theirs:
                assert abs(loss_of(ours) - loss_of(theirs)) <= LOSS_BOUND


def predicted(case: Case, head: Head) -> Iterator[dict[str, int]]:
    model, planning = own_description(case.folder, [SPEC]), planning_of("archon")
    assert model is not None
    sharding = planning.sharding(model, case.layout, Storage(dtype="float32", head=head))
    trained = planning.trained_bytes(sharding, case.layout, distributed_optimizer=True)
    for read, rank in zip(sharding.held_bytes(), trained, strict=True):
        found = read, rank.weights, rank.gradients, rank.optimizer
        names = ("read", "train_param", "train_grad", "train_optimizer")
        yield dict(zip(names, found, strict=True))


def test_memory_is_planned_to_the_byte_for_actors_and_for_critics(
    courses: Mapping[str, Course], forked_workers: ForkedWorkers
) -> None:
    folder = next(iter(courses))
    heads: tuple[tuple[str, Head], ...] = (
        ("DP2", "vocabulary"),
        ("TP2", "vocabulary"),
        ("PP2", "vocabulary"),
        ("TP2+SP", "value"),
        ("PP2", "value"),
    )
    asked = [
        (replace(LAYOUTS[name], folder=folder), course_of(folder, 1), head, "archon")
        for name, head in heads
    ]
    replies = forked_workers.run("memory_probe:found_bytes", asked, ranks=2)
    for index, (case, _, head, _) in enumerate(asked):
        assert [reply[index] for reply in replies] == [*predicted(case, head)], (case.layout, head)


@pytest.mark.nightly
def test_what_tensor_ranks_wrote_two_shards_go_on_with_and_leaving_the_device_changes_no_bit(
    courses: Mapping[str, Course], forked_workers: ForkedWorkers, tmp_path: Path
) -> None:
    folder = next(iter(courses))
    course = course_of(folder, STOP + 1)
    two, shards = (
        replace(LAYOUTS[name], folder=folder, backend="archon") for name in ("TP2+SP", "DP2")
    )
    straight = run(forked_workers, "save", two, course, tmp_path)
    resumed = run(forked_workers, "load", shards, course, tmp_path)
    assert_equal(whole(tmp_path / "again"), whole(tmp_path))
    (ours,), theirs = resumed[0].metrics, straight[0].metrics[STOP]
    assert ours["policy_loss"] == pytest.approx(theirs["policy_loss"], abs=2e-6)
    stays, moves = (
        forked_workers.run("training_probe:updates", [two], replace(course, swap=swap), ranks=2)
        for swap in (False, True)
    )
    for (stayed,), (moved,) in zip(stays, moves, strict=True):
        assert moved.metrics == stayed.metrics
        assert_equal(moved.weights, stayed.weights)
        assert moved.device_bytes == [0] * len(course.minibatches)
