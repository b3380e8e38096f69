"""Rotary frequencies are those of transformers, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mindrl.models.description import ModelDescription, read_description
from mindrl.training.rotary import inverse_frequencies

MODELS = Path(__file__).parents[3] / "configs" / "models"
SMALL = {"num_attention_heads": 4, "head_dim": 32, "hidden_size": 128, "num_hidden_layers": 2}


def described(config: LlamaConfig, folder: Path) -> ModelDescription:
    config.save_pretrained(folder)
    return read_description(str(folder))


def of_transformers(config: LlamaConfig) -> Tensor:
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        return LlamaRotaryEmbedding.compute_default_rope_parameters(config)[0]
    found, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    assert attention_factor == 1.0
    return found


def scaling(factor: float, low: float, high: float, length: int) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "linear", "factor": 1.0},
        scaling(8.0, 1.0, 4.0, 8192),
        scaling(32.0, 1.0, 4.0, 8192),
        scaling(7.3, 1.0, 4.0, 16),
        scaling(8.0, 2.5, 3.0, 64),
        # Every wave is between low and high.
        scaling(4.0, 1e-6, 1e6, 256),
    ],
)
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [32, 64, 128, 6])
def test_each_frequency_is_that_of_transformers_to_the_bit(
    rope: dict[str, Any], theta: float, head_dim: int, tmp_path: Path
) -> None:
    sizes = SMALL | {"head_dim": head_dim}
    config = LlamaConfig(**sizes, rope_parameters=rope | {"rope_theta": theta})
    found_F = inverse_frequencies(described(config, tmp_path))
    assert found_F.dtype == torch.float32
    assert torch.equal(found_F, of_transformers(config))


@pytest.mark.parametrize(
    ("name", "kept", "divided", "factor"),
    [("Llama-3.1-8B", 29, 29, 8.0), ("Llama-3.2-1B", 15, 14, 32.0)],
)
def test_a_published_llama_keeps_its_high_frequencies_and_divides_its_low_ones(
    name: str, kept: int, divided: int, factor: float
) -> None:
    model = read_description(str(MODELS / name))
    found_F = inverse_frequencies(model)
    assert torch.equal(found_F, of_transformers(AutoConfig.from_pretrained(MODELS / name)))
    powers_F = torch.arange(0, model.head_dim, 2) / model.head_dim
    ratio_F = 500_000.0**-powers_F / found_F
    # Between the two lie the few that are mixed.
    assert ratio_F[:kept].tolist() == pytest.approx([1.0] * kept, abs=1e-5)
    assert ratio_F[-divided:].tolist() == pytest.approx([factor] * divided, rel=1e-5)
    mixed_F = ratio_F[kept:-divided]
    assert ((mixed_F > 1.0) & (mixed_F < factor)).all()
