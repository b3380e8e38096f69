"""Requirements of every engine on a model's sizes; each engine adds its own. Pure Python."""

from collections.abc import Iterator, Mapping
from math import prod

from mindrl.config.finding import (
    Finding,
    broken,
    divisors_near,
    must_divide,
    nearest_divisors,
    nearest_first,
)
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription

Keys = Mapping[str, str]
"""User-facing name of each dimension: a configuration key, or `--from t`."""


def tensor_parallel_findings(model: ModelDescription, tp: int, keys: Keys) -> Iterator[Finding]:
    """Yield a finding for each dimension that no engine can cut by the tensor-parallel size."""
    if tp == 1:
        return
    field, moe = keys["tp"], model.moe
    yield from must_divide(field, tp, "num_attention_heads", model.num_attention_heads)
    if model.mla is None:
        yield from _key_value_heads(field, tp, model.num_key_value_heads)
    if moe is None or moe.dense_layers:
        yield from must_divide(field, tp, "intermediate_size", model.intermediate_size)
    if moe and moe.shared_intermediate_size:
        width = moe.shared_intermediate_size
        yield from must_divide(field, tp, "the width of the shared experts", width)


def context_parallel_findings(
    model: ModelDescription, layout: TrainLayout, keys: Keys
) -> Iterator[Finding]:
    """Yield findings if the ranks that trade heads cannot share a tensor-parallel rank's heads."""
    degree = layout.ulysses_degree
    if degree == 1:
        return
    field = keys["cp"] if layout.ring == 1 else "actor_config.ulysses_degree_in_cp"
    heads = model.num_attention_heads // layout.tp
    yield from must_divide(field, degree, "the attention heads of a tensor-parallel rank", heads)
    key_value_heads = max(1, model.num_key_value_heads // layout.tp)
    if model.mla is None and key_value_heads % degree and degree % key_value_heads:
        need = (
            f"must divide the key-value heads of a tensor-parallel rank, {key_value_heads}, or be "
            f"a multiple of them; nearest: {nearest_divisors(key_value_heads, degree)}"
        )
        yield broken(field, degree, need, *divisors_near(key_value_heads, degree))


def pipeline_findings(
    model: ModelDescription, layout: TrainLayout, keys: Keys
) -> Iterator[Finding]:
    """Yield findings if no training engine can cut the layers into the layout's chunks."""
    if layout.vpp > 1 and layout.pp == 1:
        yield broken(keys["vpp"], layout.vpp, f"needs {keys['pp']} of 2 or more, found 1", 1)
    judged = _even_layers if layout.layers_per_chunk is None else _given_layers
    yield from judged(model.num_hidden_layers, layout, keys)


def expert_findings(model: ModelDescription, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    """Yield findings if no training engine can distribute the experts evenly, or cut them."""
    if model.moe is None:
        sizes = {"ep": layout.ep, "etp": layout.etp}
        yield from (without_experts(keys[name], size) for name, size in sizes.items() if size > 1)
    else:
        width = model.moe.intermediate_size
        yield from must_divide(keys.get("ep", ""), layout.ep, "num_experts", model.moe.num_experts)
        yield from must_divide(keys.get("etp", ""), layout.etp, "moe_intermediate_size", width)


def without_experts(field: str, size: int) -> Finding:
    """Return the finding about an expert size of a model without experts."""
    return broken(field, size, "needs a model with experts; use 1", 1)


def _even_layers(layers: int, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    sizes = {keys[name]: size for name in ("pp", "vpp") if (size := getattr(layout, name)) > 1}
    for finding in must_divide(
        " times ".join(sizes), prod(sizes.values()), "num_hidden_layers", layers
    ):
        uneven = f"; or give {keys['layers_per_chunk']}" if "layers_per_chunk" in keys else ""
        field, size = list(sizes.items())[-1]
        others = prod(sizes.values()) // size
        legal = divisors_near(layers // others, size) if layers % others == 0 else ()
        yield Finding(f"{finding}{uneven}", field, size, legal)


def _given_layers(layers: int, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    given, chunks = layout.layers_per_chunk or (), layout.pp * layout.vpp
    if len(given) != chunks or sum(given) != layers or min(given) < 1:
        need = f"must be {chunks} numbers from 1 with the sum num_hidden_layers={layers}"
        least, more = divmod(layers, chunks)
        even = tuple(least + (chunk < more) for chunk in range(chunks))
        yield broken(keys["layers_per_chunk"], given, need, *([even] if least else []))


def _key_value_heads(field: str, tp: int, heads: int) -> Iterator[Finding]:
    if heads % tp and tp % heads:
        near, multiple = nearest_divisors(heads, tp), tp // heads * heads
        if tp > heads:
            near = f"{multiple}, {multiple + heads}"
        need = f"must divide num_key_value_heads={heads} or be a multiple of it; nearest: {near}"
        legal = {*divisors_near(heads, tp), multiple, multiple + heads} - {0}
        yield broken(field, tp, need, *nearest_first(legal, tp))
