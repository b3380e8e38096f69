"""Checks of runs with batch-invariant kernels. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, Value, broken, spelled
from mindrl.config.generate import GenerateConfig
from mindrl.config.run import RunConfig
from mindrl.models.description import ModelDescription
from mindrl.platform.device import Platform
from mindrl.platform.device_engine import invariance_needs, lacks_for_batch_invariance

_KEY = "generate_config.batch_invariant"
_ROWS = 16
"""Numbers that torch's activation computes at a time; it rounds the rest of a row differently."""


def invariance_findings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield what the device's batch-invariant kernels do not support in a run."""
    rollout, needs = config.generate_config, invariance_needs(platform)
    if not rollout.batch_invariant:
        return
    if rollout.is_served:
        need = ": servers choose their kernels when they start; use false, or no servers"
        yield broken(_KEY, True, need, False)
    if needs.own_process and config.learns and not config.is_apart:
        need = (
            ": the engine replaces operators of torch in its whole process, possibly without "
            "gradients; give the rollout its own devices (rl_config.use_integrated_worker=false), "
            "or use false"
        )
        yield broken(_KEY, True, need, False)
    if rollout.dtype not in needs.dtypes:
        yield _must_be("generate_config.dtype", rollout.dtype, *needs.dtypes)
    if needs.whole_prompts:
        yield from _of_whole_prompts(rollout)
    if needs.eager and rollout.enforce_eager is False:
        yield _must_be("generate_config.enforce_eager", False, True)
    if needs.same_operators:
        yield from _of_trainer(config)


def invariance_findings_on(
    config: RunConfig, platform: Platform, model: ModelDescription | None
) -> Iterator[Finding]:
    """Yield what the device's batch-invariant kernels do not support in the actor's model."""
    if not config.generate_config.batch_invariant or model is None:
        return
    needs, lacking = invariance_needs(platform), []
    if needs.plain_attention and model.mla is not None:
        lacking.append("latent attention")
    if needs.plain_attention and model.sliding_window is not None:
        lacking.append(f"sliding_window={model.sliding_window}")
    if needs.same_operators and model.moe is not None:
        lacking.append("experts")
    if needs.same_operators and (model.other or model.delta):
        lacking.append(f"the operators of {model.model_type}")
    if needs.same_operators and model.intermediate_size % _ROWS:
        lacking.append(f"an intermediate_size={model.intermediate_size} not divisible by {_ROWS}")
    if lacking:
        need = (
            f" does not support {' and '.join(lacking)} of {config.model_key('actor')}="
            f"{config.model_path('actor')}; use false"
        )
        yield broken(_KEY, True, need.strip(), False)


def lacking_kernels(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield a finding if this machine lacks the packages of batch-invariant kernels."""
    if config.generate_config.batch_invariant:
        for package in lacks_for_batch_invariance(platform):
            yield broken(_KEY, True, f": this machine lacks {package}; install it, or use false")


def _of_whole_prompts(rollout: GenerateConfig) -> Iterator[Finding]:
    tokens, longest = rollout.max_num_batched_tokens, rollout.max_model_len
    if rollout.enable_prefix_caching:
        yield _must_be("generate_config.enable_prefix_caching", True, False)
    if rollout.kv_block_tokens is not None:
        yield _must_be("generate_config.kv_block_tokens", rollout.kv_block_tokens, None)
    if tokens < longest:
        need = f"must be at least generate_config.max_model_len={longest} with {_KEY}=true"
        yield broken("generate_config.max_num_batched_tokens", tokens, need, longest)


def _of_trainer(config: RunConfig) -> Iterator[Finding]:
    """The trainer calls the engine's kernels on whole matrices, in the engine's data type."""
    if config.megatron_training.bf16:
        yield _must_be("megatron_training.bf16", True, False)
    if config.actor_config.lora.r:
        yield _must_be("actor_config.lora.r", config.actor_config.lora.r, 0)
    keys = config.layout_keys("actor")
    cuts = [keys[name] for name in ("tp", "cp") if name in keys]
    for key in (*cuts, "generate_config.infer_tensor_parallel_size"):
        if (size := config.value_of(key)) != 1:
            yield _must_be(key, size, 1)


def _must_be(key: str, value: Value, *legal: Value) -> Finding:
    allowed = " or ".join(map(spelled, legal))
    return broken(key, value, f"must be {allowed} with {_KEY}=true", *legal)
