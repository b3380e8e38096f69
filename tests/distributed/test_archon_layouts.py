"""The torch-native engine in every layout, beside Hugging Face and one process of Megatron.

The short suite covers every pair of cut dimensions, every schedule and every family; all cases run
at night.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from forked_workers import ForkedWorkers
from nightly import UPDATES, at_night_but, cut_pairs
from test_layout_table import LOGITS_BOUND, LOSS_BOUND, Family, compare
from test_training_layouts import LOSS, OPTIMIZER, digits, minibatches, sequences
from training_messages import Case, Course, Trial

from mindrl.batch.balance import MicroBatching
from mindrl.config.archon import ArchonConfig
from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

DENSE = ("qwen2", "qwen2 tied", "qwen3", "llama")
ANY_FAMILY: Mapping[str, TrainLayout] = {
    "alone": TrainLayout(),
    "DP2": TrainLayout(dp=2),
    "TP2": TrainLayout(tp=2),
    "TP2+SP": TrainLayout(tp=2),
    "CP2": TrainLayout(cp=2),
    "DP2+TP2+SP": TrainLayout(dp=2, tp=2),
    "DP2+CP2": TrainLayout(dp=2, cp=2),
    "TP2+CP2": TrainLayout(tp=2, cp=2),
    "TP4, more than key-value heads": TrainLayout(tp=4),
    "PP2": TrainLayout(pp=2),
    "PP2, 1 and 3 layers": TrainLayout(pp=2, layers_per_chunk=(1, 3)),
    "PP2 I1F1B": TrainLayout(pp=2, vpp=2),
    "PP2 IZB": TrainLayout(pp=2, vpp=2),
    "PP2 ZBV": TrainLayout(pp=2, vpp=2, folds=True),
    "PP2+DP2": TrainLayout(pp=2, dp=2),
    "PP2+DP2, each has all": TrainLayout(pp=2, dp=2),
    "PP2+DP4, shared by two, IZB": TrainLayout(pp=2, dp=4, vpp=2),
    "PP2+TP2+SP": TrainLayout(pp=2, tp=2),
    "PP2+TP2+SP I1F1B": TrainLayout(pp=2, tp=2, vpp=2),
    "PP2+CP2 ZBV": TrainLayout(pp=2, cp=2, vpp=2, folds=True),
    "PP2+DP2+TP2+SP IZB": TrainLayout(pp=2, dp=2, tp=2, vpp=2),
}
MIXTURE: Mapping[str, TrainLayout] = {
    "alone": TrainLayout(),
    "DP2": TrainLayout(dp=2),
    "EP2": TrainLayout(dp=2, ep=2),
    "TP2+SP": TrainLayout(tp=2),
    "TP2+SP+EP2": TrainLayout(tp=2, ep=2),
    "TP2+SP+ETP2": TrainLayout(tp=2, etp=2),
    "CP2+EP2": TrainLayout(cp=2, ep=2),
    "DP2+TP2+SP+EP2": TrainLayout(dp=2, tp=2, ep=2),
    "DP2+TP2+SP+EP2+ETP2": TrainLayout(dp=2, tp=2, ep=2, etp=2),
    "TP2+SP+CP2+EP4": TrainLayout(tp=2, cp=2, ep=4),
    "DP2+TP2+SP+EP2+ETP2, other neighbours": TrainLayout(
        dp=2,
        tp=2,
        ep=2,
        etp=2,
        order=digits("dp", 2, "tp", 2, "cp", 1, "pp", 1),
        expert_order=digits("ep", 2, "etp", 2, "dp", 1, "pp", 1),
    ),
    "PP2+DP2+EP2 IZB": TrainLayout(pp=2, dp=2, ep=2, vpp=2),
    "PP2+DP2+TP2+SP+EP2 ZBV": TrainLayout(pp=2, dp=2, tp=2, ep=2, vpp=2, folds=True),
}
"""Of a mixture of experts."""
SCHEDULES: Mapping[str, ArchonConfig] = {
    name: ArchonConfig(pp_schedule=name) for name in ("I1F1B", "IZB", "ZBV")
}
SHARING: Mapping[str, int] = {"PP2+DP2, each has all": 1, "PP2+DP4, shared by two, IZB": 2}
"""Ranks that share a weight, where others have copies."""
EVERY_CHANGE = {
    # With a tied head the first and the last stage have the embedding; of a V one rank has both.
    ("qwen2 tied", "PP2, 1 and 3 layers"),
    ("qwen2 tied", "PP2+CP2 ZBV"),
    ("llama", "PP2+TP2+SP I1F1B"),
    ("llama", "DP2+CP2"),
    ("qwen3", "PP2+DP2, each has all"),
    ("qwen2", "TP2+CP2"),
    ("qwen2", "TP4, more than key-value heads"),
    # Experts cut by the ranks of CP and TP; cut themselves, which their parts' order shows; IZB.
    ("qwen3_moe", "TP2+SP+CP2+EP4"),
    ("qwen3_moe", "DP2+TP2+SP+EP2+ETP2"),
    ("qwen3_moe", "PP2+DP2+EP2 IZB"),
}


def cases() -> Iterator[tuple[str, str, TrainLayout]]:
    """Yield family, name of the layout, and the layout."""
    for family in DENSE:
        for name, layout in ANY_FAMILY.items():
            yield family, name, layout
    for name, layout in MIXTURE.items():
        yield "qwen3_moe", name, layout


def case_of(folder: str, name: str, layout: TrainLayout) -> Case:
    schedule = SCHEDULES.get(name.rsplit(maxsplit=1)[-1], ArchonConfig())
    settings = {"archon": replace(schedule, fsdp_size=SHARING.get(name))}
    return Case(folder=folder, layout=layout, sequence_parallel="SP" in name, settings=settings)


@pytest.fixture(scope="module")
def families(
    random_model_of: Callable[..., Path], forked_workers: ForkedWorkers
) -> Mapping[str, Family]:
    """What one process of Megatron finds for each family."""
    courses = {}
    for family in (*DENSE, "qwen3_moe"):
        name, *tied = family.split()
        folder = str(random_model_of(name, bool(tied), spread=0.1))
        courses[folder] = Course(
            minibatches=minibatches(folder, UPDATES),
            loss=LOSS,
            optimizer=OPTIMIZER | {"updates": UPDATES},
            micro_batching=MicroBatching(sequences=2),
        )
    asked = [(Case(folder=folder), course) for folder, course in courses.items()]
    (found,) = forked_workers.run("training_probe:trials", asked, sequences())
    trained = zip(courses.items(), found, strict=True)
    made = [Family(folder=folder, course=course, alone=each) for (folder, course), each in trained]
    return dict(zip((*DENSE, "qwen3_moe"), made, strict=True))


@pytest.mark.parametrize(
    ("ranks", "every_case"),
    at_night_but([(2, False)], product([1, 2, 4, 8], [False, True])),
)
def test_logits_are_hugging_faces_and_updates_are_those_of_megatron(
    ranks: int,
    every_case: bool,
    families: Mapping[str, Family],
    forked_workers: ForkedWorkers,
) -> None:
    chosen = [
        ((family, name), case_of(families[family].folder, name, layout))
        for family, name, layout in cases()
        if layout.world_size == ranks and (every_case or (family, name) in EVERY_CHANGE)
    ]
    asked = [(case, families[family].course) for (family, _), case in chosen]
    replies: list[list[Trial]] = forked_workers.run(
        "archon_probe:trials", asked, sequences(), ranks=ranks
    )
    for index, (key, case) in enumerate(chosen):
        found = [reply[index] for reply in replies]
        row = compare(case.layout, found, families[key[0]].alone, case.folder)
        assert row.logits <= LOGITS_BOUND, key
        assert row.loss <= LOSS_BOUND, key
        assert row.grad_norm <= LOSS_BOUND, key


def test_the_short_suite_takes_each_pair_of_cuts_each_schedule_and_each_family() -> None:
    every = {(family, name): layout for family, name, layout in cases()}
    assert every.keys() >= EVERY_CHANGE
    assert cut_pairs(every[key] for key in EVERY_CHANGE) == cut_pairs(every.values())
    last_words = {name.rsplit(maxsplit=1)[-1] for _, name in EVERY_CHANGE}
    assert last_words >= SCHEDULES.keys()
    assert {family for family, _ in EVERY_CHANGE} == {family for family, _ in every}
