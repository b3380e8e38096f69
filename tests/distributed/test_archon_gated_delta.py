"""mindrl's own network with gated delta nets in every layout, beside Hugging Face and one process.

Two key heads and four value heads: tensor-parallel ranks have one and two of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from forked_workers import ForkedWorkers
from nightly import UPDATES, at_night_but
from test_layout_table import LOSS_BOUND, compare
from test_training_layouts import LOSS, OPTIMIZER, minibatches, sequences
from training_messages import Case, Course, Trial

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

LOGITS_BOUND = 5e-6
"""Logits of size 1 in float32, four layers; 9e-7 was found."""
RECOMPUTED = {"archon": ArchonConfig(ac_mode="full")}
CASES: Mapping[str, Case] = {
    "alone": Case(folder="", layout=TrainLayout()),
    "alone, recomputed": Case(folder="", layout=TrainLayout(), settings=RECOMPUTED),
    "DP2": Case(folder="", layout=TrainLayout(dp=2)),
    "TP2": Case(folder="", layout=TrainLayout(tp=2)),
    "TP2+SP, recomputed": Case(
        folder="", layout=TrainLayout(tp=2), sequence_parallel=True, settings=RECOMPUTED
    ),
    "PP2": Case(folder="", layout=TrainLayout(pp=2)),
    "PP2 IZB": Case(
        folder="",
        layout=TrainLayout(pp=2, vpp=2),
        settings={"archon": ArchonConfig(pp_schedule="IZB")},
    ),
    "DP2+TP2": Case(folder="", layout=TrainLayout(dp=2, tp=2)),
    "PP2+TP2+SP": Case(folder="", layout=TrainLayout(pp=2, tp=2), sequence_parallel=True),
}
EVERY_CHANGE = ("TP2+SP, recomputed", "PP2")


@pytest.fixture(scope="module")
def course(random_model_of: Callable[..., Path]) -> Course:
    return Course(
        minibatches=minibatches(str(random_model_of("qwen3_5_text", spread=0.04)), UPDATES),
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": UPDATES},
        micro_batching=MicroBatching(sequences=2),
    )


@pytest.fixture(scope="module")
def alone(
    course: Course, forked_workers: ForkedWorkers, random_model_of: Callable[..., Path]
) -> Trial:
    """What transformers' layers find in one process."""
    folder = str(random_model_of("qwen3_5_text", spread=0.04))
    asked = [(Case(folder=folder, backend="fsdp"), course)]
    ((found,),) = forked_workers.run("archon_probe:trials", asked, sequences())
    return found


@pytest.mark.parametrize(
    ("ranks", "every_case"),
    at_night_but([(2, False)], [(2, False), (1, True), (2, True), (4, True)]),
)
def test_logits_are_hugging_faces_and_updates_are_those_of_transformers_layers(
    ranks: int,
    every_case: bool,
    course: Course,
    alone: Trial,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
) -> None:
    folder = str(random_model_of("qwen3_5_text", spread=0.04))
    chosen = {
        name: replace(case, folder=folder, backend="archon")
        for name, case in CASES.items()
        if case.layout.world_size == ranks and (every_case or name in EVERY_CHANGE)
    }
    asked = [(case, course) for case in chosen.values()]
    replies: list[list[Trial]] = forked_workers.run(
        "archon_probe:trials", asked, sequences(), ranks=ranks
    )
    for index, (name, case) in enumerate(chosen.items()):
        found = [reply[index] for reply in replies]
        row = compare(case.layout, found, alone, folder)
        assert row.logits <= LOGITS_BOUND, name
        assert row.loss <= LOSS_BOUND, name
        assert row.grad_norm <= LOSS_BOUND, name
