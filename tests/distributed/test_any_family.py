"""Networks of transformers on FSDP2: beside Hugging Face, one process and the other engines."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from forked_workers import ForkedWorkers
from nightly import UPDATES, at_night_but
from test_layout_table import LOGITS_BOUND, LOSS_BOUND, compare
from test_training_layouts import LOSS, OPTIMIZER, minibatches, sequences
from training_messages import Case, Course, Trial

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

KNOWN = "qwen2"
"""Of this one mindrl has a network, and Megatron too; here it takes transformers'."""
RECURRENT = ("qwen3_5_text", "qwen3_next", "qwen3_5_moe_text")
"""Of these layers have a state, which context-parallel ranks could not pass on."""
FAMILIES = ("stablelm", "starcoder2 tied", "olmo2", "qwen3", *RECURRENT, KNOWN)
WITHOUT_PLAN = "stablelm"
"""Of this one transformers has no plan by which it may be cut."""
LAYOUTS: Mapping[str, Case] = {
    "DP2": Case(folder="", layout=TrainLayout(dp=2), backend="fsdp"),
    "CP2": Case(folder="", layout=TrainLayout(cp=2), backend="fsdp"),
    "DP2+CP2, shared by two": Case(
        folder="",
        layout=TrainLayout(dp=2, cp=2),
        backend="fsdp",
        settings={"archon": ArchonConfig(fsdp_size=2)},
    ),
    "TP2": Case(folder="", layout=TrainLayout(tp=2), backend="fsdp"),
    "DP2+TP2": Case(folder="", layout=TrainLayout(dp=2, tp=2), backend="fsdp"),
    "TP2+CP2": Case(folder="", layout=TrainLayout(tp=2, cp=2), backend="fsdp"),
}
EVERY_CHANGE = {
    (WITHOUT_PLAN, "DP2+CP2, shared by two"),
    ("starcoder2 tied", "DP2+TP2"),
    ("olmo2", "TP2"),
    ("qwen3", "TP2+CP2"),
    ("qwen3_5_text", "DP2"),
    ("qwen3_next", "TP2"),
    ("qwen3_5_moe_text", "TP2"),
    (KNOWN, "DP2"),
}
"""Each family, and each pair of dimensions."""


@pytest.fixture(scope="module")
def courses(random_model_of: Callable[..., Path]) -> Mapping[str, Course]:
    """By the folder of each family."""
    found = {}
    for family in FAMILIES:
        name, *tied = family.split()
        updates = UPDATES if family == KNOWN else 3
        folder = str(random_model_of(name, bool(tied), spread=0.1))
        found[folder] = Course(
            minibatches=minibatches(folder, updates),
            loss=LOSS,
            optimizer=OPTIMIZER | {"updates": updates},
            micro_batching=MicroBatching(sequences=2),
        )
    return found


@pytest.fixture(scope="module")
def alone(courses: Mapping[str, Course], forked_workers: ForkedWorkers) -> list[Trial]:
    """What one process finds of each family."""
    asked = [(Case(folder=folder, backend="fsdp"), course) for folder, course in courses.items()]
    (found,) = forked_workers.run("archon_probe:trials", asked, sequences())
    return found


def test_one_process_has_hugging_faces_logits(
    courses: Mapping[str, Course], alone: list[Trial]
) -> None:
    for folder, trial in zip(courses, alone, strict=True):
        assert compare(TrainLayout(), [trial], trial, folder).logits <= LOGITS_BOUND


@pytest.mark.parametrize("probe", ["training_probe", "archon_probe"])
def test_updates_of_a_known_family_are_those_of_megatron_and_of_our_own_network(
    probe: str, courses: Mapping[str, Course], alone: list[Trial], forked_workers: ForkedWorkers
) -> None:
    folder, course = list(courses.items())[FAMILIES.index(KNOWN)]
    asked = [(Case(folder=folder), course)]
    ((other,),) = forked_workers.run(f"{probe}:trials", asked, sequences())
    row = compare(TrainLayout(), [alone[FAMILIES.index(KNOWN)]], other, folder)
    assert len(other.metrics) == UPDATES
    assert row.loss <= LOSS_BOUND
    assert row.grad_norm <= LOSS_BOUND


@pytest.mark.parametrize(
    ("ranks", "every_case"), at_night_but([(2, False)], product([2, 4], [False, True]))
)
def test_logits_are_hugging_faces_and_updates_are_those_of_one_process(
    ranks: int,
    every_case: bool,
    courses: Mapping[str, Course],
    alone: list[Trial],
    forked_workers: ForkedWorkers,
) -> None:
    chosen = [
        (family, case)
        for family, (name, case) in product(FAMILIES, LAYOUTS.items())
        if case.layout.world_size == ranks
        and (family != WITHOUT_PLAN or case.layout.tp == 1)
        and (family not in RECURRENT or case.layout.cp == 1)
        and (every_case or (family, name) in EVERY_CHANGE)
    ]
    folders, of = dict(zip(FAMILIES, courses, strict=True)), dict(zip(FAMILIES, alone, strict=True))
    asked = [
        (replace(case, folder=folders[family]), courses[folders[family]]) for family, case in chosen
    ]
    replies: list[list[Trial]] = forked_workers.run(
        "archon_probe:trials", asked, sequences(), ranks=ranks
    )
    for index, (family, case) in enumerate(chosen):
        found = [reply[index] for reply in replies]
        row = compare(case.layout, found, of[family], folders[family])
        assert row.logits <= LOGITS_BOUND, (family, case)
        assert row.loss <= LOSS_BOUND, (family, case)
        assert row.grad_norm <= LOSS_BOUND, (family, case)
