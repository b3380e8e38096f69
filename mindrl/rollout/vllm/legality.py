"""What vLLM demands of a model's sizes. Pure; every finding names the nearest legal values."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken, must_divide
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys, tensor_parallel_findings, without_experts
from mindrl.rollout.vllm.architectures import installed_architectures
from mindrl.rollout.vllm.sharding import padded_vocab_size


def vllm_findings(model: ModelDescription, layout: RolloutLayout, keys: Keys) -> Iterator[Finding]:
    """Say what keeps vLLM from cutting a model by a layout.

    Of `keys` only those of sizes above 1 are used: `tp`, `pp` and `ep`; and `model`, the word for
    the model, of another family than mindrl's own.
    """
    known = installed_architectures() if model.other else None
    if model.other and known is not None and model.other.architecture not in known:
        word = keys.get("model", "model")
        yield Finding(f"{word}: the vLLM here has no {model.other.architecture}", word)
    yield from tensor_parallel_findings(model, layout.tp, keys)
    if layout.tp > 1:
        rows = padded_vocab_size(model)
        yield from must_divide(keys["tp"], layout.tp, "vocab_size in whole 64s", rows)
    yield from _at_most(keys, "pp", layout.pp, "num_hidden_layers", model.num_hidden_layers)
    if model.moe is None:
        if layout.ep > 1:
            yield without_experts(keys["ep"], layout.ep)
    elif layout.ep > 1:
        yield from _at_most(keys, "ep", layout.ep, "num_experts", model.moe.num_experts)
    elif layout.tp > 1:
        width = model.moe.intermediate_size
        yield from must_divide(keys["tp"], layout.tp, "moe_intermediate_size", width)


def _at_most(keys: Keys, dimension: str, size: int, what: str, largest: int) -> Iterator[Finding]:
    if size > largest:
        need = f"must be at most {what}={largest}; nearest: {largest}"
        yield broken(keys[dimension], size, need, largest)
