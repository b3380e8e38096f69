"""The quick answer on memory is never kinder than the whole plan, and saves most of the time."""

from pathlib import Path
from typing import Any

import pytest
from checked_runs import DEVICES, TRAIN_TP, MakeConfig, model_folder, overrides

from mindrl.config.run import RunConfig
from mindrl.memory.schedule import Phase
from mindrl.preflight.memory_plan import Capacity, judged_memory, memory_plan
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.programs.memory import peak_moments

MIB = 1 << 20
PP = "actor_config.pipeline_model_parallel_size"
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {DEVICES: 4, TRAIN_TP: 2},
    # The first stage has an embedding and two layers, the last one a head and one.
    {DEVICES: 2, PP: 2, "actor_config.num_layer_list": [2, 1]},
    {DEVICES: 4, PP: 2, "actor_config.num_layer_list": [2, 1], "rl_config.init_kl_coef": 0.1},
)


def small_run(tmp_path: Path, run_config: MakeConfig, sizes: dict[str, Any]) -> RunConfig:
    folder = model_folder(tmp_path / "model", num_hidden_layers=3, vocab_size=9600)
    small = {"generate_config.kv_cache_mib": 1, "generate_config.reshard_bucket_mib": 1}
    return run_config(folder, overrides(tmp_path) | sizes | small)


def surely_fits(config: RunConfig, device_bytes: int) -> bool:
    """Say whether a run fits by its bound alone: nothing is looked for, and no reshard planned."""
    models = unordered_shardings(config)
    found = judged_memory(models, Capacity(device_bytes=device_bytes))[0]
    return not found and not {"ordered", "cells", "reshard"} & vars(models).keys()


@pytest.mark.parametrize("sizes", LAYOUTS)
def test_what_surely_fits_does_fit(
    sizes: dict[str, Any], tmp_path: Path, run_config: MakeConfig
) -> None:
    config = small_run(tmp_path, run_config, sizes)
    peak = memory_plan(unordered_shardings(config).ordered, None).peak_bytes
    # Nothing is sure below the peak; 8 MiB hold what the bound adds to this small model.
    assert not surely_fits(config, peak - MIB)
    assert surely_fits(config, peak + 8 * MIB)


@pytest.mark.parametrize("sizes", LAYOUTS)
def test_a_run_is_refused_exactly_below_its_peak(
    sizes: dict[str, Any], tmp_path: Path, run_config: MakeConfig
) -> None:
    """Where the quick answer is no, the whole plan decides."""
    config = small_run(tmp_path, run_config, sizes)
    peak = memory_plan(unordered_shardings(config).ordered, None).peak_bytes
    models = unordered_shardings(config)
    assert judged_memory(models, Capacity(device_bytes=peak))[0] == []
    assert len(judged_memory(models, Capacity(device_bytes=peak - 1))[0]) == 1


def test_a_derived_kv_cache_never_makes_a_run_too_large(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder = model_folder(tmp_path / "model", num_hidden_layers=3, vocab_size=9600)
    derived = {
        "generate_config.kv_cache_mib": None,
        "generate_config.gpu_memory_utilization": 1.0,
        "generate_config.reshard_bucket_mib": 1,
    }
    config = run_config(folder, overrides(tmp_path) | derived)
    assert surely_fits(config, 64 * MIB)
    assert memory_plan(unordered_shardings(config).ordered, 64 * MIB).peak_bytes <= 64 * MIB


def test_an_optimizer_step_that_needs_more_than_the_activations_is_counted_in_their_place(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    config = small_run(tmp_path, run_config, {"actor_config.logprob_chunk_tokens": 1})
    models = unordered_shardings(config)
    plan = memory_plan(models.ordered, None)
    # Of the embedding and the head, 9600 rows each: one's root and quotient, and the other's.
    step = 3 * 9600 * 28 * 4
    assert dict(plan.steps) == {Phase.TRAIN: step}
    assert plan.working_bytes(Phase.TRAIN, step + 1) == step + 1
    fits = plan.peak_bytes + step
    for there, count in ((fits, 0), (fits - MIB, 1)):
        found, warnings = judged_memory(models, Capacity(device_bytes=there))
        assert (found, len(warnings)) == ([], count)
    (text,) = map(str, warnings)
    assert "MiB, 3 of them for the optimizer's step; use a larger tensor_model" in text
    (shown,) = (each for each in peak_moments(plan, models.ordered) if each.label == "train")
    assert shown.activations_estimate_bytes == step


def test_devices_with_the_rollout_only_are_judged_without_activations(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    half = {"rl_config.debug": "rollout_only"}
    kept = {"megatron_training.keep_rollouts": 10, "megatron_training.save_interval": 0}
    models = unordered_shardings(small_run(tmp_path, run_config, half | kept))
    assert judged_memory(models, Capacity(device_bytes=64 * MIB)) == ([], [])
