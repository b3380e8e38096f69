"""Families that mindrl has no network of, on FSDP2: beside Hugging Face and beside one process."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from forked_workers import ForkedWorkers
from reshard_messages import Arrived, Way
from test_layout_table import LOGITS_BOUND, LOSS_BOUND, compare
from test_training_layouts import LOSS, OPTIMIZER, minibatches, sequences
from training_messages import Case, Course, Trial

from mindrl.batch.balance import MicroBatching
from mindrl.layouts.layout import RolloutLayout, TrainLayout

pytestmark = pytest.mark.distributed

FAMILIES = ("stablelm", "starcoder2 tied")
LAYOUTS: Mapping[str, TrainLayout] = {
    "DP2": TrainLayout(dp=2),
    "CP2": TrainLayout(cp=2),
    "DP2+CP2": TrainLayout(dp=2, cp=2),
}


@pytest.fixture(scope="module")
def courses(random_model_of: Callable[..., Path]) -> Mapping[str, Course]:
    """By the folder of each family."""
    found = {}
    for family in FAMILIES:
        name, *tied = family.split()
        folder = str(random_model_of(name, bool(tied), spread=0.1))
        found[folder] = Course(
            minibatches=minibatches(folder, 3),
            loss=LOSS,
            optimizer=OPTIMIZER | {"updates": 3},
            micro_batching=MicroBatching(sequences=2),
        )
    return found


@pytest.fixture(scope="module")
def alone(courses: Mapping[str, Course], forked_workers: ForkedWorkers) -> list[Trial]:
    """What one process finds of each family."""
    asked = [(Case(folder=folder), course) for folder, course in courses.items()]
    (found,) = forked_workers.run("archon_probe:trials", asked, sequences())
    return found


def test_one_process_has_hugging_faces_logits(
    courses: Mapping[str, Course], alone: list[Trial]
) -> None:
    for folder, trial in zip(courses, alone, strict=True):
        assert compare(TrainLayout(), [trial], trial, folder).logits <= LOGITS_BOUND


@pytest.mark.parametrize("ranks", [2, 4])
def test_logits_are_hugging_faces_and_updates_are_those_of_one_process(
    ranks: int,
    courses: Mapping[str, Course],
    alone: list[Trial],
    forked_workers: ForkedWorkers,
) -> None:
    layouts = {name: each for name, each in LAYOUTS.items() if each.world_size == ranks}
    asked = [
        (Case(folder=folder, layout=layout), course)
        for folder, course in courses.items()
        for layout in layouts.values()
    ]
    replies: list[list[Trial]] = forked_workers.run(
        "archon_probe:trials", asked, sequences(), ranks=ranks
    )
    expected = [trial for trial in alone for _ in layouts]
    for index, ((case, _), one) in enumerate(zip(asked, expected, strict=True)):
        row = compare(case.layout, [reply[index] for reply in replies], one, case.folder)
        assert row.logits <= LOGITS_BOUND, case
        assert row.loss <= LOSS_BOUND, case
        assert row.grad_norm <= LOSS_BOUND, case


@pytest.mark.parametrize("rollout", [RolloutLayout(dp=2), RolloutLayout(tp=2)])
def test_a_running_engine_has_the_weights_after_each_reshard(
    rollout: RolloutLayout, courses: Mapping[str, Course], forked_workers: ForkedWorkers
) -> None:
    folder, train = next(iter(courses)), TrainLayout(dp=2)
    ways = [Way(folder=folder, train=train, rollout=rollout, backend="archon")]
    prompts = [[5, 3, 9, 2], [7, 7, 4]]
    replies: list[list[Arrived]] = forked_workers.run(
        "reshard_probe:into_engines", ways, prompts, ranks=2
    )
    for (arrived,) in replies:
        answers = arrived.answers
        assert answers["update 2"] == arrived.fresh["update 2"] == answers["woken"]
        assert answers["update 0"] != answers["update 1"] != answers["update 2"]
        assert arrived.parameters_left == 0
