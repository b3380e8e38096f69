"""Sizes of gated delta nets: layers of linear attention with a state (arXiv:2412.06464).

Imports no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.models.placement import Shape
from mindrl.models.rope import STRICT

GATED_DELTA_FAMILIES = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
"""Families with such layers whose packs have been tested; others need a test of their own."""
LINEAR, FULL = "linear_attention", "full_attention"
"""Kinds of layers in `layer_types` of config.json."""
CHUNK = 64
"""Tokens whose products an engine computes at once; the state goes from chunk to chunk."""
_EVERY_FOURTH = 4
"""transformers' default: every fourth layer has full attention."""

_Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GatedDeltaNet:
    """The gated delta nets of a model; all have the same sizes."""

    layers: tuple[int, ...]
    """Indices of the layers with one; the others have full attention."""
    key_heads: _Size
    """Number of heads of queries and of keys."""
    value_heads: _Size
    key_width: _Size
    """Width of a head of queries or keys."""
    value_width: _Size
    convolution: _Size
    """Tokens that the convolution over queries, keys and values covers."""
    interleaved: bool = False
    """Whether one matrix projects to queries, keys, values and their gate, one key head after the
    other, and another to rates and decays."""

    def __post_init__(self) -> None:
        """Refuse key heads that do not divide the value heads."""
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"linear_num_key_heads={self.key_heads} must divide "
                f"linear_num_value_heads={self.value_heads}"
            )

    @property
    def mixed_rows(self) -> tuple[int, int, int]:
        """Rows of queries, keys and values, in this order, in their common projection."""
        return self.key_rows, self.key_rows, self.value_rows

    @property
    def key_rows(self) -> int:
        """Rows of the projection to queries, or to keys."""
        return self.key_heads * self.key_width

    @property
    def value_rows(self) -> int:
        """Rows of the projection to values, or to their gate."""
        return self.value_heads * self.value_width


def gated_delta_net(values: Mapping[str, Any]) -> GatedDeltaNet | None:
    """Return the sizes from config.json; None if it has no layer of linear attention."""
    layers = tuple(index for index, kind in enumerate(layer_kinds(values)) if kind == LINEAR)
    if values.get("model_type") not in GATED_DELTA_FAMILIES or not layers:
        return None
    sizes = {name: values.get(key) for name, key in _SIZES.items()}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"{_SIZES[name]}={size!r} must be an integer of at least 1")
    interleaved = values["model_type"] == "qwen3_next"
    return GatedDeltaNet(layers=layers, interleaved=interleaved, **sizes)  # type: ignore[arg-type]


def gated_delta_shapes(delta: GatedDeltaNet, hidden: int, layer: str) -> dict[str, Shape]:
    """Return the shape of each logical tensor of a layer's gated delta net."""
    here, mixed = f"{layer}linear_attn.", sum(delta.mixed_rows)
    projections = {
        "qkv": mixed,
        "z": delta.value_rows,
        "b": delta.value_heads,
        "a": delta.value_heads,
    }
    if delta.interleaved:
        projections = {"qkvz": mixed + delta.value_rows, "ba": 2 * delta.value_heads}
    return {
        **{f"{here}in_proj_{name}.weight": (rows, hidden) for name, rows in projections.items()},
        f"{here}conv1d.weight": (mixed, 1, delta.convolution),
        f"{here}A_log": (delta.value_heads,),
        f"{here}dt_bias": (delta.value_heads,),
        f"{here}norm.weight": (delta.value_width,),
        f"{here}out_proj.weight": (hidden, delta.value_rows),
    }


def layer_kinds(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kind of each layer by config.json; empty if all are alike."""
    listed = values.get("layer_types")
    if listed is not None or values.get("model_type") not in GATED_DELTA_FAMILIES:
        return tuple(listed or ())
    every = values.get("full_attention_interval", _EVERY_FOURTH)
    layers = range(1, 1 + (values.get("num_hidden_layers") or 0))
    return tuple(LINEAR if layer % every else FULL for layer in layers)


def unsupported_layers(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield kinds of layers whose packs are not known to be exact."""
    known = {FULL, LINEAR} if values.get("model_type") in GATED_DELTA_FAMILIES else {FULL}
    for kind in sorted(set(layer_kinds(values)) - known):
        only = f"; of {', '.join(GATED_DELTA_FAMILIES)} also {LINEAR!r}" if kind == LINEAR else ""
        yield f"layer_types with {kind!r} is not supported; only {FULL!r}{only}"
    if values.get("attn_output_gate") is False:
        yield "attn_output_gate=false is not supported; only true"
    if values.get("output_gate_type", "silu") not in ("silu", "swish"):
        yield f"output_gate_type={values['output_gate_type']!r} is not supported; only 'silu'"


def unsupported_nets(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what mindrl's own network of such a family lacks."""
    yield from unsupported_layers(values)
    if LINEAR not in layer_kinds(values):
        yield f"layer_types needs a layer with {LINEAR!r} in this family"


_SIZES: Mapping[str, str] = {
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_width": "linear_key_head_dim",
    "value_width": "linear_value_head_dim",
    "convolution": "linear_conv_kernel_dim",
}
