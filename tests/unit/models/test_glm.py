"""GLM-4.5's mixture: what is read from its config.json, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import Glm4MoeConfig

from mindrl.errors import ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.training.archon.legality import archon_findings
from mindrl.training.megatron.legality import megatron_findings

AIR = Path(__file__).parents[3] / "configs" / "models" / "GLM-4.5-Air"


def glm(tmp_path: Path, change: dict[str, Any]) -> str:
    values = json.loads((AIR / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | change), "utf-8")
    return str(tmp_path)


def test_glm_is_read_under_its_names_and_with_the_defaults_of_its_family(tmp_path: Path) -> None:
    model = read_description(str(AIR))
    assert (model.attention_bias, model.qk_norm, model.rotary_width) == (True, False, 64)
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.shared_intermediate_size) == (128, 1408)
    assert (model.moe.score_correction_bias, model.moe.norm_topk_prob) == (True, True)
    assert model.moe.dense_layers == {0}
    # transformers 5 writes the part that is rotated next to the base.
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    new = {"rope_parameters": rope, "rope_theta": None, "partial_rotary_factor": None}
    assert read_description(glm(tmp_path, new)).rotary_width == 32
    omitted = Glm4MoeConfig()
    names = ("first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok")
    changes = [dict.fromkeys(names), {"use_qk_norm": None, "rope_parameters": {}}]
    for change in changes:
        assert read_description(glm(tmp_path, {**change, "partial_rotary_factor": 0.5})) == model
    assert omitted.rope_parameters["partial_rotary_factor"] == 0.5
    assert [getattr(omitted, name) for name in names] == [1, 1, True, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob=False is not supported; only True"),
        ({"num_experts_per_tok": 1}, "num_experts_per_tok=1 is not supported; only 2 or more"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True is not supported; only False"),
        (
            {"n_group": 8, "topk_group": 2},
            (
                "topk_group=2 is not supported: megatron ranks expert groups by their best "
                "num_experts_per_tok // topk_group = 4, but glm4_moe by their best 2; archon and "
                "fsdp have no groups"
            ),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope scaling {'type': 'linear', 'factor': 4.0} is not supported; only default",
        ),
        (
            {"partial_rotary_factor": 0.4},
            (
                "partial_rotary_factor=0.4 must be an even number of head_dim=128 dimensions, "
                "found 51"
            ),
        ),
        (
            {"partial_rotary_factor": 1.5},
            "partial_rotary_factor=1.5 must be less than or equal to 1",
        ),
    ],
)
def test_what_the_engines_would_compute_differently_of_glm_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = glm(tmp_path, change)
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json: {message}"


def test_archon_names_what_it_lacks_of_glm_and_megatron_takes_it() -> None:
    model = read_description(str(AIR))
    layout, keys = TrainLayout(dp=8, tp=8, ep=8), {"tp": "t", "ep": "e", "backend": "backend"}
    assert [*megatron_findings(model, layout, keys)] == []
    (found,) = archon_findings(model, TrainLayout(), keys)
    assert str(found) == ("backend: shared experts, a bias of expert routing need megatron")
