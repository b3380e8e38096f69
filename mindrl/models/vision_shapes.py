"""Sizes of vision towers, and tensors of models with one, by config.json alone.

Names are those of newer folders. Imports no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.models.config_file import text_values
from mindrl.models.other_family import TowerSizes
from mindrl.models.placement import Shape

_Tensors = Iterator[tuple[str, Shape]]
_GATED = "qwen2_5_vl"
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    _GATED: {
        "depth": 32,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "num_position_embeddings": 0,
    },
    "qwen3_vl": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "out_hidden_size": 3584,
        "patch_size": 16,
        "num_position_embeddings": 2304,
    },
}
"""transformers' values of keys that a `vision_config` lacks."""
_OF_BOTH = {"temporal_patch_size": 2, "spatial_merge_size": 2}
_INNER = (8, 16, 24)


def tower_sizes(values: Mapping[str, Any]) -> TowerSizes:
    """Return the sizes of the tower of a family of `VISION_FAMILIES`.

    Raises:
        ValueError: A size is invalid.
    """
    family, given = str(values["model_type"]), values["vision_config"]
    usual = {**_OF_BOTH, **_DEFAULTS[family]}
    sizes = {name: given.get(name, value) for name, value in usual.items()}
    for name, value in sizes.items():
        if type(value) is not int or value < (name != "num_position_embeddings"):
            raise ValueError(f"vision_config.{name}={value!r} must be a positive integer")
    is_gated = family == _GATED
    inner = () if is_gated else given.get("deepstack_visual_indexes", _INNER)
    return TowerSizes(
        layers=sizes["depth"],
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        out_hidden_size=sizes["out_hidden_size"],
        patch=sizes["patch_size"],
        frames=sizes["temporal_patch_size"],
        merge=sizes["spatial_merge_size"],
        places=sizes["num_position_embeddings"],
        inner=len(inner),
        is_gated=is_gated,
    )


def planned_vision_shapes(values: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the name and shape of each tensor, to plan without weight files.

    Empty for other families.

    Raises:
        ValueError: A size is missing or invalid.
    """
    if values.get("model_type") not in _DEFAULTS or not values.get("vision_config"):
        return {}
    return {**dict(_tower(tower_sizes(values))), **dict(_decoder(text_values(values)))}


def _tower(sizes: TowerSizes) -> _Tensors:
    hidden, here = sizes.hidden_size, "model.visual."
    kernel = (hidden, 3, sizes.frames, sizes.patch, sizes.patch)
    yield f"{here}patch_embed.proj.weight", kernel
    if not sizes.is_gated:
        yield f"{here}patch_embed.proj.bias", (hidden,)
        yield f"{here}pos_embed.weight", (sizes.places, hidden)
    for index in range(sizes.layers):
        layer = f"{here}blocks.{index}."
        for norm in ("norm1", "norm2"):
            yield from _norm(f"{layer}{norm}", hidden, has_bias=not sizes.is_gated)
        yield from _linear(f"{layer}attn.qkv", 3 * hidden, hidden)
        yield from _linear(f"{layer}attn.proj", hidden, hidden)
        names = ("gate_proj", "up_proj", "down_proj") if sizes.is_gated else _PLAIN
        for name in names[:-1]:
            yield from _linear(f"{layer}mlp.{name}", sizes.intermediate_size, hidden)
        yield from _linear(f"{layer}mlp.{names[-1]}", hidden, sizes.intermediate_size)
    wide = hidden * sizes.patches_of_token
    if sizes.is_gated:
        yield from _norm(f"{here}merger.ln_q", hidden, has_bias=False)
        yield from _merger((f"{here}merger.mlp.0", f"{here}merger.mlp.2"), wide, sizes)
        return
    yield from _norm(f"{here}merger.norm", hidden, has_bias=True)
    places = ["merger", *(f"deepstack_merger_list.{index}" for index in range(sizes.inner))]
    for place in places[1:]:
        yield from _norm(f"{here}{place}.norm", wide, has_bias=True)
    for place in places:
        first, last = (f"{here}{place}.{name}" for name in _PLAIN)
        yield from _merger((first, last), wide, sizes)


_PLAIN = ("linear_fc1", "linear_fc2")


def _merger(names: tuple[str, str], wide: int, sizes: TowerSizes) -> _Tensors:
    yield from _linear(names[0], wide, wide)
    yield from _linear(names[1], sizes.out_hidden_size, wide)


def _decoder(values: Mapping[str, Any]) -> _Tensors:
    """Yield the tensors of a Qwen2 decoder, or of a Qwen3 one with norms of queries and keys."""
    hidden, vocabulary = _size(values, "hidden_size"), _size(values, "vocab_size")
    heads, is_older = _size(values, "num_attention_heads"), values["model_type"] == _GATED
    width = values.get("head_dim") or hidden // heads
    rows = {"q": heads * width} | dict.fromkeys("kv", _size(values, "num_key_value_heads") * width)
    yield "model.language_model.embed_tokens.weight", (vocabulary, hidden)
    for index in range(_size(values, "num_hidden_layers")):
        layer = f"model.language_model.layers.{index}."
        for letter, count in rows.items():
            yield from _linear(f"{layer}self_attn.{letter}_proj", count, hidden, has_bias=is_older)
            if letter != "v" and not is_older:
                yield f"{layer}self_attn.{letter}_norm.weight", (width,)
        yield f"{layer}self_attn.o_proj.weight", (hidden, rows["q"])
        inner = _size(values, "intermediate_size")
        yield f"{layer}mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}mlp.down_proj.weight", (hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}{norm}.weight", (hidden,)
    yield "model.language_model.norm.weight", (hidden,)
    if not values.get("tie_word_embeddings"):
        yield "lm_head.weight", (vocabulary, hidden)


def _linear(name: str, rows: int, columns: int, *, has_bias: bool = True) -> _Tensors:
    yield f"{name}.weight", (rows, columns)
    if has_bias:
        yield f"{name}.bias", (rows,)


def _norm(name: str, width: int, *, has_bias: bool) -> _Tensors:
    yield f"{name}.weight", (width,)
    if has_bias:
        yield f"{name}.bias", (width,)


def _size(values: Mapping[str, Any], name: str) -> int:
    found = values.get(name)
    if type(found) is not int or found < 1:
        raise ValueError(f"{name}={found!r} must be an integer of at least 1")
    return found
