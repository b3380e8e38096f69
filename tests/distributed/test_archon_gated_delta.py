"""mindrl's own network with gated delta nets in every layout, beside Hugging Face and one process.

Two key heads and four value heads: tensor-parallel ranks have one and two of them. Mixtures have
eight experts in each layer, and one for all tokens.
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
MIXED: Mapping[str, Case] = {
    "alone": Case(folder="", layout=TrainLayout()),
    "DP2": Case(folder="", layout=TrainLayout(dp=2)),
    "EP2": Case(folder="", layout=TrainLayout(dp=2, ep=2)),
    "TP2+SP+EP2, recomputed": Case(
        folder="", layout=TrainLayout(tp=2, ep=2), sequence_parallel=True, settings=RECOMPUTED
    ),
    "PP2": Case(folder="", layout=TrainLayout(pp=2)),
    "TP2+SP+DP2+EP4": Case(folder="", layout=TrainLayout(tp=2, dp=2, ep=4), sequence_parallel=True),
    "PP2+DP2+EP2": Case(folder="", layout=TrainLayout(pp=2, dp=2, ep=2)),
}
"""Mixtures: with a tensor-parallel size they need sequence parallelism."""
NESTED = {name: MIXED[name] for name in ("alone", "EP2")}
"""The decoder of a mixture with a vision tower: its files have the experts in stacks."""
FAMILIES = {
    "qwen3_5_text": CASES,
    "qwen3_5_moe_text": MIXED,
    "qwen3_next": MIXED,
    "qwen3_5_moe": NESTED,
}
EVERY_CHANGE = {
    "qwen3_5_text": ("TP2+SP, recomputed", "PP2"),
    "qwen3_next": ("EP2", "TP2+SP+EP2, recomputed"),
}
RANKS = (1, 2, 4)
RANKS_OF = {"qwen3_5_moe": (1, 2)}


@pytest.mark.parametrize(
    ("family", "ranks", "every_case"),
    at_night_but(
        [(family, 2, False) for family in EVERY_CHANGE],
        [
            *((family, 2, False) for family in EVERY_CHANGE),
            *(
                (family, ranks, True)
                for family in FAMILIES
                for ranks in RANKS_OF.get(family, RANKS)
            ),
        ],
    ),
)
def test_logits_are_hugging_faces_and_updates_are_those_of_transformers_layers(
    family: str,
    ranks: int,
    every_case: bool,
    forked_workers: ForkedWorkers,
    random_model_of: Callable[..., Path],
) -> None:
    folder = str(random_model_of(family, spread=0.04))
    course = Course(
        minibatches=minibatches(folder, UPDATES),
        loss=LOSS,
        optimizer=OPTIMIZER | {"updates": UPDATES},
        micro_batching=MicroBatching(sequences=2),
    )
    of_transformers = [(Case(folder=folder, backend="fsdp"), course)]
    alone: Trial
    ((alone,),) = forked_workers.run("archon_probe:trials", of_transformers, sequences())
    chosen = {
        name: replace(case, folder=folder, backend="archon")
        for name, case in FAMILIES[family].items()
        if case.layout.world_size == ranks and (every_case or name in EVERY_CHANGE[family])
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
