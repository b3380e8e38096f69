"""Runs whose engine rounds to int8: what is refused and corrected, and the bytes of the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder, overrides, refused

from mindrl.config.generate import GenerateConfig
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.quantization_checks import quantization_findings, quantization_findings_on
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.vllm.options import command_of, rollout_options

KEY = "generate_config.quantization"
LEVEL = "rl_config.rollout_correction.level"
SERVED = {
    "generate_config.servers": ("http://127.0.0.1:8000",),
    "rl_config.use_integrated_worker": False,
}
MIXTURE = {
    "model_type": "qwen3_moe",
    "head_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}


@pytest.mark.parametrize(
    ("changes", "field", "legal"),
    [
        ({LEVEL: "off"}, LEVEL, ("token", "sequence")),
        (
            {"rl_config.old_log_probs": "from_rollout"},
            "rl_config.old_log_probs",
            (None, "recompute"),
        ),
        ({"generate_config.batch_invariant": True}, "generate_config.batch_invariant", (False,)),
        (SERVED, KEY, (None,)),
    ],
)
def test_what_a_rounded_engine_cannot_have_is_named_with_its_remedy(
    changes: dict[str, Any],
    field: str,
    legal: tuple[object, ...],
    tmp_path: Path,
    run_config: MakeConfig,
) -> None:
    given = overrides(tmp_path) | changes
    config = run_config(model_folder(tmp_path / "model"), given | {KEY: "int8"})
    (found,) = quantization_findings(config)
    assert (found.field, found.legal) == (field, legal)
    plain = run_config(tmp_path / "model", given)
    assert [*quantization_findings(plain)] == []


def test_a_mixture_is_refused_by_check_and_a_dense_model_is_not(
    tmp_path: Path, run_config: MakeConfig, random_model_of: Callable[..., Path]
) -> None:
    mixture = model_folder(tmp_path / "mixture", **MIXTURE)
    config = run_config(mixture, overrides(tmp_path) | {KEY: "int8"})
    assert refused(config) == [
        f"{KEY}=int8 must be null: mindrl rounds no experts of a mixture",
    ]
    dense = read_description(str(model_folder(tmp_path / "dense")))
    assert [*quantization_findings_on(config, dense)] == []
    recurrent = read_description(str(random_model_of("qwen3_5_text")))
    (finding,) = quantization_findings_on(config, recurrent)
    assert "without gated delta nets" in str(finding)


def test_tokens_of_a_float32_engine_are_corrected_if_it_rounds(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    given = overrides(tmp_path) | {"generate_config.dtype": "float32"}
    model = model_folder(tmp_path / "model")
    assert run_config(model, given).rollout_correction is None
    corrected = run_config(model, given | {KEY: "int8"}).rollout_correction
    assert corrected is not None
    assert corrected.level == "token"


def test_the_plan_counts_a_byte_per_weight_of_a_layer_and_four_per_row_on_each_rank(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    ranks = {
        "rl_config.actor_resource.num_npus": 2,
        "generate_config.infer_tensor_parallel_size": 2,
        "generate_config.dtype": "bfloat16",
    }
    given = overrides(tmp_path) | ranks

    def bytes_with(**changes: object) -> tuple[int, ...]:
        return unordered_shardings(run_config(model, given | changes)).rollout.held_bytes()

    # Rows and columns of each matrix on one of two ranks: 14 of 28 heads and 2 of 4 of width 1,
    # and 32 of 64 inner features.
    matrices = ((14 + 2 + 2, 28), (28, 14), (2 * 32, 28), (28, 32))
    saved = sum(rows * columns - 4 * rows for rows, columns in matrices)
    (plain, _), (rounded, other) = bytes_with(), bytes_with(**{KEY: "int8"})
    assert rounded == other == plain - saved


def test_the_transfer_has_the_same_bytes_as_without_rounding(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    plain, rounded = (
        unordered_shardings(run_config(model, overrides(tmp_path) | changes)).reshard
        for changes in ({}, {KEY: "int8"})
    )
    assert rounded.copied.tolist() == plain.copied.tolist()
    assert rounded.copied.sum() > 0


def test_an_engine_and_a_server_get_the_format_in_the_words_of_vllm() -> None:
    def options(generate: GenerateConfig) -> dict[str, Any]:
        return rollout_options("folder", generate, PLATFORMS["cpu"], 1)

    assert options(GenerateConfig())["hf_overrides"] is None
    found = options(GenerateConfig(quantization="int8"))["hf_overrides"]["quantization_config"]
    (group,) = found["config_groups"].values()
    assert group["weights"] == {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
        "dynamic": False,
    }
    assert group["input_activations"]["strategy"] == "token"
    assert group["input_activations"]["dynamic"] is True
    assert "--hf-overrides" not in command_of(options(GenerateConfig()))
