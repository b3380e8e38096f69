"""What a Hugging Face config.json says about a model. Imports no torch."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from mindrl.errors import ModelError

SUPPORTED_FAMILIES = ("qwen2",)


Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class ModelDescription:
    """Sizes of a decoder-only model; field names follow config.json."""

    model_type: str
    num_hidden_layers: Size
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    vocab_size: Size
    rms_norm_eps: Annotated[float, Field(gt=0.0)]
    rope_theta: Annotated[float, Field(gt=0.0)]
    max_position_embeddings: Size
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        """Refuse heads that do not fall into equal groups."""
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} must divide "
                f"num_attention_heads={self.num_attention_heads}"
            )

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
    for unsupported in _unsupported(values):
        raise ModelError(f"{folder}/config.json: {unsupported}")
    try:
        return ModelDescription(**_sizes(values))
    except ValidationError as error:
        raise ModelError(f"{folder}/config.json{_first_finding(error)}") from error


def _first_finding(error: ValidationError) -> str:
    found = error.errors(include_url=False)[0]
    name = ".".join(map(str, found["loc"]))
    if found["type"] == "missing":
        return f" has no {name!r}"
    if found["type"] == "value_error":
        return f": {found['ctx']['error']}"
    return f": {name}={found['input']!r} {found['msg'].replace('Input should be', 'must be')}"


def _unsupported(values: Mapping[str, Any]) -> Iterator[str]:
    """Name what the model needs and mindrl does not have; otherwise it would be ignored."""
    if values.get("hidden_act", "silu") != "silu":
        yield f"hidden_act={values['hidden_act']!r} is not supported; only 'silu'"
    if values.get("quantization_config"):
        yield "quantized weights (quantization_config) are not supported"
    if values.get("use_sliding_window"):
        yield "use_sliding_window=true is not supported"
    for kind in sorted(set(values.get("layer_types") or ()) - {"full_attention"}):
        yield f"layer_types with {kind!r} is not supported; only 'full_attention'"
    rope = _rope(values)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        yield f"rope scaling {rope} is not supported; only default"


def _rope(values: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes rope_parameters with rope_theta in it, earlier versions both apart.
    found = values.get("rope_parameters") or values.get("rope_scaling")
    return found if isinstance(found, dict) else {}


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the sizes, with the defaults that transformers gives to those left out."""
    heads, hidden = values.get("num_attention_heads"), values.get("hidden_size")
    head_dim = values.get("head_dim")
    if head_dim is None and isinstance(heads, int) and isinstance(hidden, int) and heads:
        head_dim = hidden // heads
    defaults = {"tie_word_embeddings": False}
    if heads is not None:
        defaults["num_key_value_heads"] = heads
    named = {field.name for field in fields(ModelDescription)}
    given = {name: value for name, value in values.items() if name in named and value is not None}
    derived = {
        "head_dim": head_dim,
        "rope_theta": _rope(values).get("rope_theta") or values.get("rope_theta"),
    }
    found = {name: value for name, value in derived.items() if value is not None}
    return defaults | given | found


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
