"""What the torch-native engine keeps and borrows in fact, beside what plans say of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench_recompute import MODES, description
from forked_workers import ForkedWorkers
from nightly import at_night_but
from test_archon_layouts import SCHEDULES
from test_archon_pipelines import LOOP, V, learning_of
from training_messages import Case

from mindrl.config.archon import ArchonConfig
from mindrl.config.lora import LINEARS
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.activations import Passes, update_estimate
from mindrl.models.adapters import LowRank
from mindrl.models.description import ModelDescription, MoeDescription, read_description
from mindrl.models.gated_delta import GatedDeltaNet
from mindrl.training.archon.state_bytes import archon_borrowed_bytes
from mindrl.training.planning import planning_of

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
TOKENS, FEW = 1024, 16
EXPERTS = MoeDescription(
    num_experts=8,
    num_experts_per_tok=2,
    intermediate_size=256,
    shared_intermediate_size=0,
    score_correction_bias=False,
    dense_layers=frozenset(),
)
ADAPTERS = LowRank(r=16, alpha=16.0, targets=LINEARS)
# What is kept of a layer, in units of the estimate.
MODES_KEEP = {
    "none": (0.97, 1.0),
    "selective op": (0.98, 1.02),
    "selective 2": (0.97, 1.0),
    "full": (0.98, 1.05),
}


def estimate(
    model: ModelDescription, archon: ArchonConfig, layout: TrainLayout | None = None
) -> int:
    passes = Passes(
        copies=planning_of("archon").copies,
        layout=layout or TrainLayout(),
        dtype="float32",
        sequence_parallel=False,
        tokens=TOKENS,
        learning=LearningConfig(archon=archon),
    )
    return update_estimate(model, passes)


@pytest.mark.nightly
def test_two_more_layers_keep_what_is_estimated_of_them(forked_workers: ForkedWorkers) -> None:
    few, more = (kept(forked_workers, list(MODES_KEEP), description(layers)) for layers in (1, 3))
    for mode, *found in zip(MODES_KEEP, few, more, strict=True):
        archon = ArchonConfig(**MODES[mode])
        expected = estimate(description(3), archon) - estimate(description(1), archon)
        least, most = MODES_KEEP[mode]
        assert least <= (found[1] - found[0]) / expected <= most, mode


@pytest.mark.nightly
def test_layers_of_experts_keep_what_is_estimated_of_them(forked_workers: ForkedWorkers) -> None:
    few, more = (replace(description(layers), moe=EXPERTS) for layers in (1, 3))
    (least,), (most,) = (kept(forked_workers, ["none"], model) for model in (few, more))
    expected = estimate(more, ArchonConfig()) - estimate(few, ArchonConfig())
    assert (most - least) / expected == pytest.approx(1, abs=0.03)


@pytest.mark.nightly
def test_gated_delta_nets_keep_what_is_estimated_of_them(forked_workers: ForkedWorkers) -> None:
    few, more = (
        replace(
            description(layers),
            qk_norm=True,
            delta=GatedDeltaNet(
                layers=tuple(range(layers)),
                key_heads=2,
                value_heads=4,
                key_width=64,
                value_width=64,
                convolution=4,
            ),
        )
        for layers in (1, 3)
    )
    (least,), (most,) = (kept(forked_workers, ["none"], model) for model in (few, more))
    expected = estimate(more, ArchonConfig()) - estimate(few, ArchonConfig())
    assert (most - least) / expected == pytest.approx(1, abs=0.05)


def kept(workers: ForkedWorkers, modes: list[str], model: ModelDescription) -> list[int]:
    (found,) = workers.run("archon_memory_probe:kept_of_layers", modes, model, TOKENS)
    return list(found)


@pytest.mark.parametrize("packs", at_night_but([4], [4, 8]))
def test_a_stage_keeps_as_many_chunks_at_a_time_as_are_estimated_however_many_packs_come(
    packs: int, random_model_of: MakeModel, forked_workers: ForkedWorkers
) -> None:
    """Four layers on two stages, packs of one length; the stage without the head is asked."""
    folder = str(random_model_of("qwen3", spread=0.1))
    course, model = learning_of(folder, 1), read_description(folder)
    schedules = [
        (TrainLayout(pp=2), ArchonConfig(), 0),
        (LOOP, SCHEDULES["I1F1B"], 0),
        (LOOP, SCHEDULES["IZB"], 0),
        (V, SCHEDULES["ZBV"], 1),
    ]
    cases = [
        Case(folder=folder, layout=layout, settings={"archon": schedule})
        for layout, schedule, _ in schedules
    ]
    (one, *_) = course.minibatches
    alike = replace(course, minibatches=[one.rows(torch.ones(packs, dtype=torch.int64))])
    found = forked_workers.run("archon_memory_probe:most_saved", cases, alike, ranks=2)
    # Of one after the other the first stage keeps two layers of two packs.
    layer = found[0][0] / 4
    estimated = estimate(model, ArchonConfig()) / (4 + 1)
    for index, (layout, schedule, rank) in enumerate(schedules):
        layers = estimate(model, schedule, layout) / estimated - 1
        assert found[rank][index] / layer == pytest.approx(layers, rel=0.02), schedule
        assert layers == (5 if schedule is SCHEDULES["I1F1B"] else 4)


@pytest.mark.nightly
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("low_rank", [None, ADAPTERS])
def test_two_ranks_borrow_what_is_estimated(
    bf16: bool, low_rank: LowRank | None, forked_workers: ForkedWorkers
) -> None:
    """Layers of 787,000 elements; outside of them 49,000, a million and 4.2 million."""
    vocabularies = [96, 2048, 8192]
    asked = vocabularies, bf16, FEW, low_rank
    found, _ = forked_workers.run("archon_memory_probe:most_borrowed", *asked, ranks=2)
    for vocabulary, measured in zip(vocabularies, found, strict=True):
        model = replace(description(6), vocab_size=vocabulary)
        reading, learning = (
            archon_borrowed_bytes(
                model,
                TrainLayout(dp=2),
                "bfloat16" if bf16 else "float32",
                head="vocabulary",
                learns=learns,
                low_rank=low_rank,
            )
            for learns in (False, True)
        )
        # Activations of so few tokens come on top, where they are there at that moment.
        assert 0 <= measured[0] - reading <= 250_000
        # Adapters keep their inner activations too, and add outputs of a layer's size.
        of_token = 23_000 if low_rank is None else 26_000
        assert 0 <= measured[1] - learning <= FEW * 6 * of_token
