"""What keeps adapters from being put on a model, with each whole message."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_runs import (
    CPU,
    DEVICES,
    TRAIN_EP,
    TRAIN_ETP,
    MakeConfig,
    model_folder,
    overrides,
    refused,
)
from safetensors.numpy import save_file

from mindrl.checkpoint.adapter_folder import adapter_config
from mindrl.models.adapters import LowRank, factor_shapes
from mindrl.models.description import read_description
from mindrl.preflight.adapter_checks import adapter_findings_on
from mindrl.preflight.checks import check

TARGETS, LOAD = "actor_config.lora.target_modules", "actor_config.lora.load"
R, ALPHA = "actor_config.lora.r", "actor_config.lora.alpha"
KEY_OF_PEFT = "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"
MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_attention_heads": 4,
    "moe_intermediate_size": 8,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
HAS = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
HINT = f"or exclude the expert layers: {TARGETS}=[{{}}]"


def adapter_folder(path: Path, model: Path, low_rank: LowRank, **changes: Any) -> Path:
    """Write a folder of adapters on a model, as PEFT does."""
    path.mkdir()
    values = adapter_config(low_rank, str(model)) | changes
    (path / "adapter_config.json").write_text(json.dumps(values), "utf-8")
    shapes = factor_shapes(read_description(str(model)), low_rank)
    factors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(factors, path / "adapter_model.safetensors")
    return path


def test_a_layer_that_the_model_lacks_is_refused_with_those_that_it_has(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    asked = overrides(tmp_path) | {R: 4, TARGETS: ["q_a_proj", "o_proj"]}
    assert refused(run_config(model_folder(tmp_path / "model"), asked)) == [
        f"{TARGETS}: the model has no layer q_a_proj; its layers: {HAS}"
    ]


@pytest.mark.parametrize(
    ("changes", "targets", "message"),
    [
        (
            {TRAIN_ETP: 2, DEVICES: 2},
            [],
            f"{TRAIN_ETP}=2 must be 1, because adapters need whole experts; "
            + HINT.format("q_proj,k_proj,v_proj,o_proj"),
        ),
        (
            {TRAIN_ETP: 2, DEVICES: 2},
            ["up_proj", "o_proj"],
            (f"{TRAIN_ETP}=2 must be 1, because adapters need whole experts; ")
            + HINT.format("o_proj"),
        ),
        (
            {"actor_config.moe_grouped_gemm": True, "megatron_training.bf16": True},
            ["down_proj"],
            (
                "actor_config.moe_grouped_gemm=true must be false, because adapters need "
                "experts that are multiplied one by one; "
            )
            + HINT.format("q_proj,k_proj,v_proj,o_proj"),
        ),
        (
            {"actor_config.backend": "archon:d1"},
            ["down_proj", "q_proj"],
            (
                "actor_config.backend=archon:d1 must be megatron, because others keep experts in "
                "one stack; "
            )
            + HINT.format("q_proj"),
        ),
    ],
)
def test_experts_with_adapters_are_whole_and_multiplied_by_themselves(
    changes: dict[str, Any],
    targets: list[str],
    message: str,
    tmp_path: Path,
    run_config: MakeConfig,
) -> None:
    folder = model_folder(tmp_path / "model", **MIXTURE)
    asked = overrides(tmp_path) | changes | {R: 2, TARGETS: targets}
    assert refused(run_config(folder, asked)) == [message]
    # Attention alone may have them.
    check(run_config(folder, asked | {TARGETS: ["q_proj", "o_proj"]}), CPU)


def test_the_legal_value_of_stacked_experts_is_a_string_that_the_run_takes(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    folder, backend = model_folder(tmp_path / "model", **MIXTURE), "actor_config.backend"
    asked = overrides(tmp_path) | {R: 2, DEVICES: 2, TRAIN_EP: 2}
    config = run_config(folder, asked | {backend: "archon:d2e2"})
    (found,) = adapter_findings_on(config, read_description(str(folder)))
    assert (found.value, found.legal) == ("archon:d2e2", ("megatron:d2e2",))
    check(run_config(folder, asked | {backend: "megatron:d2e2"}), CPU)


@pytest.mark.parametrize(("rank", "alpha"), [(4, 8.0), (7, 29.0), (11, 15.0)])
def test_a_folder_of_the_same_adapters_is_taken(
    rank: int, alpha: float, tmp_path: Path, run_config: MakeConfig
) -> None:
    """29 / 7 * 7 is not 29 in floating point."""
    model, low_rank = (
        model_folder(tmp_path / "model"),
        LowRank(r=rank, alpha=alpha, targets=("q_proj",)),
    )
    folder = adapter_folder(tmp_path / "adapter", model, low_rank)
    asked = {R: rank, ALPHA: alpha, TARGETS: ["q_proj"], LOAD: str(folder)}
    check(run_config(model, overrides(tmp_path) | asked), CPU)


@pytest.mark.parametrize(
    ("changes", "written", "message"),
    [
        ({R: 8}, {}, f"/adapter_config.json has r=4, but {R}=8; set both"),
        ({ALPHA: 16.0}, {}, f"/adapter_config.json has lora_alpha=8.0, but {ALPHA}=16; set both"),
        ({}, {"use_dora": True}, "/adapter_config.json: use_dora=True is not supported"),
        ({TARGETS: ["q_proj", "o_proj"]}, {}, KEY_OF_PEFT),
        (
            {TARGETS: ["v_proj"]},
            {},
            "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight",
        ),
    ],
)
def test_a_folder_of_other_adapters_is_refused(
    changes: dict[str, Any],
    written: dict[str, Any],
    message: str,
    tmp_path: Path,
    run_config: MakeConfig,
) -> None:
    model, low_rank = model_folder(tmp_path / "model"), LowRank(r=4, alpha=8.0, targets=("q_proj",))
    folder = adapter_folder(tmp_path / "adapter", model, low_rank, **written)
    asked = {R: 4, ALPHA: 8.0, TARGETS: ["q_proj"], LOAD: str(folder)} | changes
    (found,) = refused(run_config(model, overrides(tmp_path) | asked))
    assert found.startswith(f"{LOAD}: {folder}/adapter_")
    assert message in found


def test_a_folder_that_is_none_is_refused(tmp_path: Path, run_config: MakeConfig) -> None:
    model, low_rank = (
        model_folder(tmp_path / "model"),
        LowRank(r=4, alpha=16.0, targets=("q_proj",)),
    )
    adapter = adapter_folder(model / "adapter", model, low_rank)
    asked = overrides(tmp_path) | {R: 4, TARGETS: ["q_proj"]}
    assert refused(run_config(model, asked | {LOAD: str(tmp_path)})) == [
        f"{LOAD}: {tmp_path}/adapter_config.json is missing; the folder has no PEFT adapter"
    ]
    assert refused(run_config(model, asked | {LOAD: str(model)})) == [
        (
            f"{LOAD}: {model}/adapter_config.json is missing; this is a model folder; its "
            f"adapter is in {adapter}"
        )
    ]
    (adapter / "adapter_model.safetensors").unlink()
    assert refused(run_config(model, asked | {LOAD: str(adapter)})) == [
        f"{LOAD}: {adapter}/adapter_model.safetensors is missing"
    ]
    (adapter / "adapter_config.json").write_text("[]")
    (found,) = refused(run_config(model, asked | {LOAD: str(adapter)}))
    assert found.startswith(f"{LOAD}: cannot read {adapter}/adapter_config.json: ")
