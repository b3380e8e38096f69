"""Estimates of activations by numbers of one's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mindrl.config.archon import ArchonConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.activations import Passes, forward_estimate, logits_estimate, update_estimate
from mindrl.models.description import ModelDescription, read_description
from mindrl.training.planning import planning_of

MODELS = Path(__file__).parents[3] / "configs" / "models"
PASSES = Passes(
    layout=TrainLayout(),
    dtype="bfloat16",
    sequence_parallel=False,
    tokens=4096,
    copies=planning_of("megatron").copies,
)
WHOLE = 4096 * (2 * 4096 * 2 + 4 * 4096 * 4)
"""Of Llama 3.1 8B and 4096 tokens: what norms give, and in float32 what they read and scale."""
ROTATION = 4096 * 2 * 4 * 128
LLAMA_LAYER = WHOLE + ROTATION + 4096 * 2 * (3 * (32 + 8) * 128 + 5 * 14336)


def llama() -> ModelDescription:
    return read_description(str(MODELS / "Llama-3.1-8B"))


def test_pytorchs_own_engine_copies_no_up_and_turns_all_layers_by_the_same_angles() -> None:
    archon = replace(PASSES, copies=planning_of("archon").copies)
    layer = WHOLE + 4096 * 2 * (3 * (32 + 8) * 128 + 4 * 14336)
    assert forward_estimate(llama(), archon) == layer + 4096 * 4096 * 2
    assert planning_of("fsdp").copies == planning_of("archon").copies


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


def test_what_a_compiler_chooses_counts_as_kept_and_every_third_layer_as_made_again() -> None:
    hidden = 2 * 4096 * 4096

    def estimate(**asked: Any) -> int:
        learning = LearningConfig(archon=ArchonConfig(**asked))
        return update_estimate(llama(), replace(PASSES, learning=learning))

    assert estimate(ac_mode="full") == 32 * hidden + 2 * LLAMA_LAYER
    third = estimate(ac_mode="selective", selective_ac_option=3)
    assert third == 10 * hidden + (22 + 2) * LLAMA_LAYER
    kept = {estimate(ac_mode=mode) for mode in ("none", "memory_budget")}
    assert kept == {33 * LLAMA_LAYER}
    # Besides the input: queries, values and attention, the gate, and what comes out.
    products = 4096 * 2 * ((2 * 32 + 8) * 128 + 14336 + 4096)
    assert estimate(ac_mode="selective") == 32 * (hidden + products) + 2 * LLAMA_LAYER


def test_the_first_stage_of_a_pipeline_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    staged = replace(PASSES, layout=TrainLayout(pp=4))
    assert update_estimate(llama(), staged) == (4 * 8 + 1) * LLAMA_LAYER


def test_with_gradients_of_weights_apart_a_stage_keeps_all_its_chunks_of_a_pack_a_stage() -> None:
    def layers(schedule: Any, layout: TrainLayout) -> float:
        learning = LearningConfig(archon=ArchonConfig(pp_schedule=schedule))
        asked = replace(PASSES, layout=layout, learning=learning)
        return update_estimate(llama(), asked) / LLAMA_LAYER - 1

    loop = TrainLayout(pp=4, vpp=2)
    assert layers("ZBV", replace(loop, folds=True)) == 8 * 4
    assert layers("IZB", loop) == 8 * 4
    # The first stage owes three more when it begins to go backward.
    assert layers("I1F1B", loop) == 11 * 4


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


def test_a_teachers_likely_tokens_count_in_its_pass_and_more_in_an_update() -> None:
    likely = replace(PASSES, candidates=64)
    more = forward_estimate(llama(), likely) - forward_estimate(llama(), PASSES)
    # Number in int64 and log-prob in float32, and the number once more on its way to the host.
    assert more == 4096 * 64 * (8 + 4 + 8)
    more = update_estimate(llama(), likely) - update_estimate(llama(), PASSES)
    # The number twice in int64, and fourteen float32.
    assert more == 4096 * 64 * (2 * 8 + 14 * 4)
    halved = replace(likely, layout=TrainLayout(cp=2))
    without = replace(halved, candidates=0)
    # The third is for the tokens of both ranks.
    assert forward_estimate(llama(), halved) - forward_estimate(llama(), without) == (
        2048 * 64 * (8 + 4) + 4096 * 64 * 8
    )
