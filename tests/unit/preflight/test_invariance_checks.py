"""Runs that batch-invariant kernels do not support are refused with what they need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import DEVICES, MakeConfig, model_folder, overrides, refused

from mindrl.config.run import RunConfig
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS, Platform
from mindrl.preflight.invariance_checks import (
    invariance_findings,
    invariance_findings_on,
    lacking_kernels,
)

KEY = "generate_config.batch_invariant"
APART = {"rl_config.use_integrated_worker": False, "rl_config.rollout_resource.num_npus": 1}
NPU, CPU, GPU = PLATFORMS["npu"], PLATFORMS["cpu"], PLATFORMS["gpu"]
MUST_BE = f"with {KEY}=true"

Make = Callable[..., RunConfig]


@pytest.fixture
def invariant(tmp_path: Path, run_config: MakeConfig) -> Make:
    def make(**changes: Any) -> RunConfig:
        model = model_folder(tmp_path / "model")
        return run_config(model, overrides(tmp_path) | {KEY: True} | changes)

    return make


def test_on_cpu_both_sides_are_whole_and_in_float32(invariant: Make) -> None:
    assert [*invariance_findings(invariant(), CPU)] == []
    wrong = {
        "generate_config.dtype": "bfloat16",
        "megatron_training.bf16": True,
        "actor_config.lora.r": 4,
        "actor_config.tensor_model_parallel_size": 2,
        "actor_config.context_parallel_size": 2,
        "generate_config.infer_tensor_parallel_size": 2,
        DEVICES: 4,
    }
    found = [*invariance_findings(invariant(**wrong), CPU)]
    assert [(each.field, each.legal) for each in found] == [
        ("generate_config.dtype", ("float32",)),
        ("megatron_training.bf16", (False,)),
        ("actor_config.lora.r", (0,)),
        ("actor_config.tensor_model_parallel_size", (1,)),
        ("actor_config.context_parallel_size", (1,)),
        ("generate_config.infer_tensor_parallel_size", (1,)),
    ]
    assert str(found[0]) == f"generate_config.dtype=bfloat16 must be float32 {MUST_BE}"
    # Without the key nothing is asked.
    assert [*invariance_findings(invariant(**wrong | {KEY: False}), CPU)] == []


def test_a_device_with_whole_prompts_needs_room_and_no_prefixes(invariant: Make) -> None:
    wrong = {
        **APART,
        "generate_config.kv_block_tokens": 32,
        "generate_config.max_num_batched_tokens": 63,
        "generate_config.max_num_seqs": 8,
        "generate_config.enforce_eager": False,
    }
    found = [*map(str, invariance_findings(invariant(**wrong), NPU))]
    assert found == [
        f"generate_config.dtype=float32 must be bfloat16 {MUST_BE}",
        f"generate_config.enable_prefix_caching=true must be false {MUST_BE}",
        f"generate_config.kv_block_tokens=32 must be null {MUST_BE}",
        (
            "generate_config.max_num_batched_tokens=63 must be at least "
            f"generate_config.max_model_len=64 {MUST_BE}"
        ),
        f"generate_config.enforce_eager=false must be true {MUST_BE}",
    ]
    assert [*invariance_findings(invariant(**wrong), GPU)] == []


@pytest.mark.parametrize("platform", [NPU, GPU], ids=["npu", "gpu"])
def test_an_engine_that_replaces_operators_has_processes_of_its_own(
    platform: Platform, invariant: Make
) -> None:
    wanted = {"generate_config.dtype": "bfloat16", "generate_config.enable_prefix_caching": False}
    (finding,) = invariance_findings(invariant(**wanted), platform)
    assert (finding.field, finding.legal) == (KEY, (False,))
    assert "possibly without gradients" in finding.need
    assert [*invariance_findings(invariant(**wanted, **APART), platform)] == []


def test_servers_choose_their_kernels_themselves(invariant: Make) -> None:
    config = invariant(**APART | {"generate_config.servers": ["http://127.0.0.1:8000"]})
    (finding,) = invariance_findings(config, GPU)
    assert (finding.field, finding.legal) == (KEY, (False,))


def test_a_model_that_the_kernels_lack_is_refused(invariant: Make, tmp_path: Path) -> None:
    config = invariant()

    def said(platform: Any, **sizes: Any) -> list[str]:
        folder = model_folder(tmp_path / "other", **sizes)
        model = read_description(str(folder), to_plan=True)
        return [each.need for each in invariance_findings_on(config, platform, model)]

    assert said(CPU) == said(NPU) == []
    assert (
        "sliding_window=64 of actor_config.load"
        in said(NPU, model_type="mistral", sliding_window=64)[0]
    )
    assert "intermediate_size=72 not divisible by 16" in said(CPU, intermediate_size=72)[0]
    assert said(NPU, intermediate_size=72) == []
    assert said(GPU, model_type="mistral", sliding_window=64) == []


def test_a_run_is_refused_by_the_whole_check(invariant: Make) -> None:
    config = invariant(**{"megatron_training.bf16": True})
    assert refused(config) == [f"megatron_training.bf16=true must be false {MUST_BE}"]


def test_a_machine_without_the_kernels_is_refused_with_all_that_it_lacks(invariant: Make) -> None:
    found = [*map(str, lacking_kernels(invariant(), NPU))]
    assert len(found) == 3
    assert found[0] == (
        f"{KEY}=true: this machine lacks vllm-ascend 0.30 or later; install it, or use false"
    )
    assert [*lacking_kernels(invariant(), CPU)] == []
    assert [*lacking_kernels(invariant(**{KEY: False}), NPU)] == []
