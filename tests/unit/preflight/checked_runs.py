"""Model folders and configurations for the checks before a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check

MakeConfig = Callable[..., RunConfig]
CPU = PLATFORMS["cpu"]
TRAIN_TP = "actor_config.tensor_model_parallel_size"
ROLLOUT_TP = "generate_config.infer_tensor_parallel_size"
TRAIN_EP = "actor_config.expert_model_parallel_size"
TRAIN_ETP = "actor_config.expert_tensor_parallel_size"
ROLLOUT_EP = "generate_config.infer_expert_parallel_size"
ACTOR = "actor_config"
RUN = "actor_config.recompute_num_layers"
DEVICES = "rl_config.actor_resource.num_npus"
SIZES: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 28,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "num_attention_heads": 28,
    "num_hidden_layers": 1,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "vocab_size": 96,
}


def model_folder(path: Path, *, labels: int | None = None, **changes: Any) -> Path:
    """Make a model of these sizes, one byte a weight: only names and shapes are looked at.

    With `labels` it is a classifier: those stand in for the vocabulary's head.
    """
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(SIZES | changes), encoding="utf-8")
    shapes = logical_shapes(read_description(str(path)))
    if labels is not None:
        shapes.pop("lm_head.weight")
        shapes["score.weight"] = (labels, SIZES["hidden_size"])
    weights = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    save_file(weights, path / "model.safetensors")
    return path


def overrides(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Make the data file, and add to its key those of a test, dots written as two underlines."""
    data = tmp_path / "train.jsonl"
    data.touch()
    given = {key.replace("__", "."): value for key, value in changes.items()}
    return {"megatron_training.data_path": str(data)} | given


def refused(config: RunConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check(config, CPU)
    return str(caught.value).splitlines()
