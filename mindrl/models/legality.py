"""What every engine demands of a model's sizes; each has its own legality besides. Pure."""

from collections.abc import Iterator, Mapping

from mindrl.config.finding import (
    Finding,
    broken,
    divisors_near,
    must_divide,
    nearest_divisors,
    nearest_first,
)
from mindrl.models.description import ModelDescription

Keys = Mapping[str, str]
"""The words that the user knows a dimension by: a configuration key, or `--from t`."""


def tensor_parallel_findings(model: ModelDescription, tp: int, keys: Keys) -> Iterator[Finding]:
    """Say what keeps any engine from cutting a model by a tensor-parallel size."""
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


def without_experts(field: str, size: int) -> Finding:
    """Refuse an expert size of a model without experts."""
    return broken(field, size, "needs a model with experts; 1 is legal", 1)


def _key_value_heads(field: str, tp: int, heads: int) -> Iterator[Finding]:
    if heads % tp and tp % heads:
        near, multiple = nearest_divisors(heads, tp), tp // heads * heads
        if tp > heads:
            near = f"{multiple}, {multiple + heads}"
        need = f"must divide num_key_value_heads={heads} or be a multiple of it; nearest: {near}"
        legal = {*divisors_near(heads, tp), multiple, multiple + heads} - {0}
        yield broken(field, tp, need, *nearest_first(legal, tp))
