"""What a Hugging Face config.json says about a model. Imports no torch."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindrl.errors import ModelError

SUPPORTED_FAMILIES = ("qwen2",)


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Sizes of a decoder-only model; field names follow config.json."""

    model_type: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def parameter_count(self) -> int:
        """Parameters of the model."""
        query = self.num_attention_heads * self.head_dim
        key_value = 2 * self.num_key_value_heads * self.head_dim
        attention = (query + key_value) * (self.hidden_size + 1) + query * self.hidden_size
        layer = attention + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings + self.hidden_size


def read_description(folder: str) -> ModelDescription:
    """Read a model folder's config.json.

    Raises:
        ModelError: The folder or the file is missing or unreadable, the family is not
            supported, or a size is missing.
    """
    values = _read_json(Path(folder))
    family = values.get("model_type")
    if family not in SUPPORTED_FAMILIES:
        near = difflib.get_close_matches(str(family), SUPPORTED_FAMILIES, n=1, cutoff=0.3)
        raise ModelError(
            f"{folder}/config.json: model_type={family!r} is not supported; "
            f"supported: {', '.join(SUPPORTED_FAMILIES)}"
            + (f"; nearest: {near[0]}" if near else "")
        )
    if values.get("use_sliding_window"):
        raise ModelError(f"{folder}/config.json: use_sliding_window=true is not supported")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ModelError(
            f"{folder}/config.json: rope scaling {rope} is not supported; only default"
        )
    try:
        return _describe(values, rope)
    except KeyError as missing:
        raise ModelError(f"{folder}/config.json has no {missing}") from None


def _describe(values: Mapping[str, Any], rope: Mapping[str, Any]) -> ModelDescription:
    heads = values["num_attention_heads"]
    return ModelDescription(
        model_type=values["model_type"],
        num_hidden_layers=values["num_hidden_layers"],
        hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_attention_heads=heads,
        num_key_value_heads=values.get("num_key_value_heads") or heads,
        head_dim=values.get("head_dim") or values["hidden_size"] // heads,
        vocab_size=values["vocab_size"],
        rms_norm_eps=values["rms_norm_eps"],
        # transformers 5 writes rope_parameters, earlier versions rope_theta.
        rope_theta=rope.get("rope_theta") or values["rope_theta"],
        max_position_embeddings=values["max_position_embeddings"],
        tie_word_embeddings=values.get("tie_word_embeddings", False),
    )


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"model folder {folder} has no config.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return values
