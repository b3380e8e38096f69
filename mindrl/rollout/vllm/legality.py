"""What vLLM demands of a model's sizes. Pure; every finding names the nearest legal values."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken, must_divide
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys, tensor_parallel_findings, without_experts
from mindrl.models.other_family import OtherFamily
from mindrl.rollout.vllm.architectures import installed_architectures
from mindrl.rollout.vllm.sharding import padded_vocab_size


def vllm_findings(model: ModelDescription, layout: RolloutLayout, keys: Keys) -> Iterator[Finding]:
    """Say what keeps vLLM from cutting a model by a layout.

    Of `keys` only those of sizes above 1 are used: `tp`, `pp` and `ep`; and `model`, the word for
    the model, of another family than mindrl's own.
    """
    if model.other:
        yield from _other_family(model.other, keys.get("model", "model"))
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


def _other_family(other: OtherFamily, word: str) -> Iterator[Finding]:
    known = installed_architectures()
    if known is not None and other.architecture not in known:
        yield Finding(f"{word}: the vLLM here has no {other.architecture}", word)
    # Some families stack them under names of their own; a stack of no experts is a convolution's.
    if any(
        ".experts." in name or (len(shape) > 2 and "conv" not in name)
        for name, shape in other.tensors
    ):
        # On a CPU vLLM puts experts in another order once, and would go on with the first ones.
        need = "experts, which vLLM may not load a second time; a family that mindrl knows can"
        yield Finding(f"{word}: {other.architecture} has {need}", word)


def _at_most(keys: Keys, dimension: str, size: int, what: str, largest: int) -> Iterator[Finding]:
    if size > largest:
        need = f"must be at most {what}={largest}; nearest: {largest}"
        yield broken(keys[dimension], size, need, largest)
