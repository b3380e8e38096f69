"""Context parallelism in rings of groups that trade heads, against one process of Megatron."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from forked_workers import ForkedWorkers
from nightly import at_night_but, few_unless_night
from test_layout_table import (
    LOGITS_BOUND,
    LOSS_BOUND,
    Family,
    compare,
    courses,
    families,
    folders,
)
from test_training_layouts import sequences
from training_messages import Case, Trial

from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

__all__ = ["courses", "families", "folders"]
RING, GROUPS = TrainLayout(cp=2, ulysses=1), TrainLayout(cp=4, ulysses=2)
CASES = {
    2: [
        # Heads of keys are wider than those of values.
        ("deepseek_v3", Case(folder="", layout=RING)),
        ("qwen2 tied", Case(folder="", layout=RING)),
        ("llama", Case(folder="", layout=RING, backend="archon")),
        ("qwen3_moe", Case(folder="", layout=RING, backend="archon")),
    ],
    4: [
        ("qwen3", Case(folder="", layout=GROUPS)),
        ("qwen3", Case(folder="", layout=TrainLayout(tp=2, cp=2, ulysses=1), backend="archon")),
        ("qwen3", Case(folder="", layout=TrainLayout(cp=4, ulysses=1))),
        ("qwen2", Case(folder="", layout=GROUPS, backend="archon")),
        ("phi3", Case(folder="", layout=TrainLayout(tp=2, cp=2, ulysses=1))),
        (
            "qwen3_moe",
            Case(
                folder="", layout=TrainLayout(tp=2, cp=2, ulysses=1, ep=2), sequence_parallel=True
            ),
        ),
    ],
    # A tensor-parallel rank has two query heads and one key-value head.
    8: [
        ("qwen2", Case(folder="", layout=TrainLayout(tp=2, cp=4, ulysses=1))),
        ("llama", Case(folder="", layout=TrainLayout(tp=2, cp=4, ulysses=1), backend="archon")),
    ],
}


@pytest.mark.parametrize("ranks", at_night_but([2], CASES))
def test_logits_are_hugging_faces_and_updates_are_those_of_one_process(
    ranks: int, families: Mapping[str, Family], forked_workers: ForkedWorkers
) -> None:
    chosen = few_unless_night(CASES[ranks][:2], CASES[ranks])
    asked = [
        (replace(case, folder=families[family].folder), families[family].course)
        for family, case in chosen
    ]
    replies: list[list[Trial]] = forked_workers.run(
        "training_probe:trials", asked, sequences(), ranks=ranks
    )
    for index, (family, case) in enumerate(chosen):
        one, folder = families[family].alone, families[family].folder
        row = compare(case.layout, [reply[index] for reply in replies], one, folder)
        assert row.logits <= LOGITS_BOUND, (family, case)
        assert row.loss <= LOSS_BOUND, (family, case)
        assert row.grad_norm <= LOSS_BOUND, (family, case)
