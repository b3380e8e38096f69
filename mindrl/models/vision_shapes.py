"""Sizes and tensors of vision towers by config.json alone.

Names are those of newer folders. Imports no torch.
"""

from collections.abc import Iterator, Mapping
from typing import Any

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


def tower_shapes(sizes: TowerSizes) -> _Tensors:
    """Yield the name and shape of each tensor of a tower."""
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


def _linear(name: str, rows: int, columns: int) -> _Tensors:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(name: str, width: int, *, has_bias: bool) -> _Tensors:
    yield f"{name}.weight", (width,)
    if has_bias:
        yield f"{name}.bias", (width,)
