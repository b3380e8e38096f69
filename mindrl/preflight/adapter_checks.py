"""Rules between the adapters of a run and the model that they modify."""

from collections.abc import Iterator

from mindrl.allocation.meaning import layout_string
from mindrl.checkpoint.adapter_folder import check_adapters
from mindrl.config.adapter_rules import SECTION
from mindrl.config.backends import TRAINING_BACKEND
from mindrl.config.finding import Finding, broken
from mindrl.config.lora import LINEARS
from mindrl.config.run import RunConfig
from mindrl.errors import ModelError
from mindrl.models.adapters import LowRank, factor_shapes
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription

_TARGETS = f"{SECTION}.target_modules"
_EXPERTS = ".experts."


def adapter_findings_on(config: RunConfig, model: ModelDescription) -> Iterator[Finding]:
    """Yield what prevents the adapters of a run from being put on its actor."""
    lora = config.actor_config.lora
    low_rank = LowRank.of(lora)
    if low_rank is None:
        return
    layers = {name.split(".")[-2] for name in logical_shapes(model) if name.endswith(".weight")}
    has = [name for name in LINEARS if name in layers]
    for name in lora.target_modules:
        if name in LINEARS and name not in has:
            left = tuple(each for each in lora.target_modules if each in has)
            text = f"{_TARGETS}: the model has no layer {name}; its layers: {', '.join(has)}"
            yield Finding(text, _TARGETS, lora.target_modules, (left,) if left else ())
    factors = factor_shapes(model, low_rank)
    if any(_EXPERTS in name for name in factors):
        yield from _on_experts(config, model, has)
    if lora.load is not None:
        try:
            check_adapters(lora.load, low_rank, factors)
        except ModelError as error:
            yield Finding(f"{SECTION}.load: {error}", f"{SECTION}.load", lora.load)


def _on_experts(config: RunConfig, model: ModelDescription, has: list[str]) -> Iterator[Finding]:
    """Adapters need whole experts, each multiplied separately."""
    others = [name for name in has if name not in ("gate_proj", "up_proj", "down_proj")]
    asked = config.actor_config.lora.target_modules
    named = tuple([name for name in others if name in asked] or others)
    if model.delta or model.other:
        need = (
            f"must exclude expert layers: the engines for {model.class_name} keep experts in one "
            "stack"
        )
        yield broken(_TARGETS, asked, need, named)
        return
    hint = f"or exclude the expert layers: {_TARGETS}=[{','.join(named)}]"
    actor = config.actor_config
    if config.training_backend("actor") != TRAINING_BACKEND:
        need = f"must be {TRAINING_BACKEND}, because others keep experts in one stack; {hint}"
        legal = layout_string(config.layout("actor"), TRAINING_BACKEND)
        yield broken("actor_config.backend", actor.backend, need, legal)
        return
    if actor.moe_grouped_gemm:
        need = (
            f"must be false, because adapters need experts that are multiplied one by one; {hint}"
        )
        yield broken("actor_config.moe_grouped_gemm", True, need, False)
    if actor.expert_tensor_parallel_size > 1:
        need = f"must be 1, because adapters need whole experts; {hint}"
        size = actor.expert_tensor_parallel_size
        yield broken("actor_config.expert_tensor_parallel_size", size, need, 1)
