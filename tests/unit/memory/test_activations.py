"""Estimates of activations by numbers of one's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mindrl.config.archon import ArchonConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.activations import Passes, forward_estimate, logits_estimate, update_estimate
from mindrl.models.description import ModelDescription, read_description

MODELS = Path(__file__).parents[3] / "configs" / "models"
PASSES = Passes(layout=TrainLayout(), dtype="bfloat16", sequence_parallel=False, tokens=4096)
WHOLE = 4096 * (2 * 4096 * 2 + 4 * 4096 * 4)
"""Of Llama 3.1 8B and 4096 tokens: what norms give, and in float32 what they read and scale."""
ROTATION = 4096 * 2 * 4 * 128
LLAMA_LAYER = WHOLE + ROTATION + 4096 * 2 * (3 * (32 + 8) * 128 + 5 * 14336)


def llama() -> ModelDescription:
    return read_description(str(MODELS / "Llama-3.1-8B"))


def test_an_update_keeps_what_every_layer_made_and_works_on_one_more() -> None:
    assert update_estimate(llama(), PASSES) == 33 * LLAMA_LAYER


def test_full_recomputation_keeps_the_inputs_of_the_layers_and_works_on_two() -> None:
    hidden = 2 * 4096 * 4096
    runs = LearningConfig(
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1
    )
    full = replace(PASSES, learning=runs)
    assert update_estimate(llama(), full) == 32 * hidden + 2 * LLAMA_LAYER
    blocks = replace(runs, recompute_method="block", recompute_num_layers=24)
    block = replace(PASSES, learning=blocks)
    assert update_estimate(llama(), block) == 24 * hidden + (8 + 2) * LLAMA_LAYER


def test_what_is_chosen_by_operation_counts_as_kept_and_every_third_layer_as_made_again() -> None:
    hidden = 2 * 4096 * 4096

    def estimate(**asked: Any) -> int:
        learning = LearningConfig(archon=ArchonConfig(**asked))
        return update_estimate(llama(), replace(PASSES, learning=learning))

    assert estimate(ac_mode="full") == 32 * hidden + 2 * LLAMA_LAYER
    third = estimate(ac_mode="selective", selective_ac_option=3)
    assert third == 10 * hidden + (22 + 2) * LLAMA_LAYER
    kept = {estimate(ac_mode=mode) for mode in ("none", "selective", "memory_budget")}
    assert kept == {33 * LLAMA_LAYER}


def test_the_first_stage_of_a_pipeline_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    staged = replace(PASSES, layout=TrainLayout(pp=4))
    assert update_estimate(llama(), staged) == (4 * 8 + 1) * LLAMA_LAYER


def test_every_stage_of_a_v_keeps_as_many_half_stages_as_twice_the_stages() -> None:
    folded = replace(PASSES, layout=TrainLayout(pp=4, vpp=2, folds=True))
    assert update_estimate(llama(), folded) == (8 * 4 + 1) * LLAMA_LAYER


def test_sequence_parallelism_cuts_what_tensor_parallelism_leaves_whole() -> None:
    cut = replace(PASSES, layout=TrainLayout(tp=4))
    shared = replace(cut, sequence_parallel=True)
    middle = (LLAMA_LAYER - WHOLE - ROTATION) // 4
    assert update_estimate(llama(), cut) == 33 * (WHOLE + ROTATION + middle)
    assert update_estimate(llama(), shared) == 33 * (WHOLE // 4 + ROTATION + middle)


def test_context_parallelism_cuts_the_tokens() -> None:
    halved = replace(PASSES, layout=TrainLayout(cp=2))
    assert forward_estimate(llama(), halved) * 2 == forward_estimate(llama(), PASSES)


def test_logits_of_a_chunk_are_float32_and_a_quarter_more() -> None:
    assert logits_estimate(llama(), 2, 1024) == 1024 * 128_256 // 2 * 5
