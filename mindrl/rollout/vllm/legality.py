"""vLLM's constraints on a model's sizes. Pure; every finding names the nearest legal values."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken, must_divide
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys, tensor_parallel_findings, without_experts
from mindrl.models.other_family import OtherFamily
from mindrl.rollout.vllm.architectures import installed_architectures, installed_head_sizes
from mindrl.rollout.vllm.sharding import padded_vocab_size


def vllm_findings(model: ModelDescription, layout: RolloutLayout, keys: Keys) -> Iterator[Finding]:
    """Yield what prevents vLLM from sharding a model with a layout.

    Only the `keys` of sizes above 1 are used: `tp`, `pp` and `ep`; and `model`, the key of the
    model, for families without built-in support.
    """
    if model.other:
        yield from _other_family(model, model.other, keys.get("model", "model"))
    if layout.pp > 1 and (model.other or model.delta):
        need = f"must be 1 for {model.class_name}: mindrl does not know its stages"
        yield broken(keys["pp"], layout.pp, need, 1)
    yield from tensor_parallel_findings(model, layout.tp, keys)
    if layout.tp > 1:
        yield from _cut_further(model, layout.tp, keys["tp"])
    yield from _at_most(keys, "pp", layout.pp, "num_hidden_layers", model.num_hidden_layers)
    if model.moe is None:
        if layout.ep > 1:
            yield without_experts(keys["ep"], layout.ep)
    elif layout.ep > 1:
        yield from _at_most(keys, "ep", layout.ep, "num_experts", model.moe.num_experts)
    elif layout.tp > 1:
        width = model.moe.intermediate_size
        yield from must_divide(keys["tp"], layout.tp, "moe_intermediate_size", width)


def _cut_further(model: ModelDescription, tp: int, field: str) -> Iterator[Finding]:
    """Yield sizes that vLLM cuts, if a tensor-parallel size above 1 does not divide them."""
    yield from must_divide(field, tp, "vocab_size in whole 64s", padded_vocab_size(model))
    if model.delta:
        yield from must_divide(field, tp, "linear_num_key_heads", model.delta.key_heads)


def cpu_attention_findings(model: ModelDescription, word: str) -> Iterator[Finding]:
    """Yield a finding if vLLM's CPU attention has no kernel for this head size.

    `word` is the key of the model. Latent attention has its own kernel.
    """
    sizes = installed_head_sizes()
    if sizes is None or model.mla is not None or model.head_dim in sizes:
        return
    near = ", ".join(map(str, sizes))
    yield Finding(
        f"{word}: head_dim={model.head_dim} must be one of {near}: vLLM's CPU attention has no "
        "other kernels",
        word,
    )


def _other_family(model: ModelDescription, other: OtherFamily, word: str) -> Iterator[Finding]:
    known = installed_architectures()
    if known is not None and other.architecture not in known:
        yield Finding(f"{word}: the installed vLLM does not support {other.architecture}", word)
    # Some families stack experts under other names; a stack that is not of experts is a
    # convolution.
    if model.moe is None and any(
        ".experts." in name or (len(shape) > 2 and "conv" not in name)
        for name, shape in other.tensors
        if other.vision is None or not name.startswith(other.vision.tower)
    ):
        # On CPU vLLM reorders experts once, and would keep using the first ones.
        need = "experts, which vLLM cannot load again; use a family that mindrl supports"
        yield Finding(f"{word}: {other.architecture} has {need}", word)


def _at_most(keys: Keys, dimension: str, size: int, what: str, largest: int) -> Iterator[Finding]:
    if size > largest:
        need = f"must be at most {what}={largest}; nearest: {largest}"
        yield broken(keys[dimension], size, need, largest)
