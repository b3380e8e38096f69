"""Rules between fields: all that can be said of a configuration by itself."""

from collections.abc import Iterator, Mapping
from math import gcd, isqrt, prod

from mindrl.config.run import RunConfig

_DEVICES = "rl_config.actor_resource.num_npus"
_LARGEST_TRIED = 1_000_000
"""Beyond it divisors are not searched for: the sizes of a run are far below its square."""


def findings(config: RunConfig) -> list[str]:
    """Return everything that is wrong with a configuration; empty where nothing is."""
    return [
        *layout_findings(config),
        *_batches(config),
        *_lengths(config),
        *_packing(config),
        *_recompute(config),
        *_choices(config),
    ]


def layout_findings(config: RunConfig) -> list[str]:
    """Return what keeps both layouts from being made."""
    return [*_layout(config), *_experts(config)]


def sequence_limits(config: RunConfig) -> tuple[tuple[str, int], ...]:
    """Return the longest sequence that each side accepts, with its key."""
    return (
        ("megatron_training.seq_length", config.megatron_training.seq_length),
        ("generate_config.max_model_len", config.generate_config.max_model_len),
    )


def nearest_divisors(number: int, value: int) -> str:
    """Name the divisors of `number` that lie next to `value`."""
    small = [
        size for size in range(1, min(isqrt(number), _LARGEST_TRIED) + 1) if number % size == 0
    ]
    divisors = sorted({*small, *(number // size for size in small)})
    below = [size for size in divisors if size < value][-1:]
    above = [size for size in divisors if size > value][:1]
    return ", ".join(map(str, below + above))


def must_divide(field: str, value: int, what: str, number: int) -> Iterator[str]:
    """Say so where `value` does not divide `number`."""
    if number % value:
        near = nearest_divisors(number, value)
        yield f"{field}={value} must divide {what}={number}; nearest: {near}"


def _layout(config: RunConfig) -> Iterator[str]:
    training, rollout = config.actor_config, config.generate_config
    sizes = {
        f"actor_config.{name}": getattr(training, name)
        for name in (
            "tensor_model_parallel_size",
            "context_parallel_size",
            "pipeline_model_parallel_size",
        )
    }
    yield from _product_must_divide(sizes, _DEVICES, config.world_size)
    size = rollout.infer_tensor_parallel_size
    yield from must_divide(
        "generate_config.infer_tensor_parallel_size", size, _DEVICES, config.world_size
    )
    if config.megatron_training.sequence_parallel and training.tensor_model_parallel_size == 1:
        yield (
            "megatron_training.sequence_parallel=true needs "
            "actor_config.tensor_model_parallel_size of 2 or more, found 1"
        )


def _experts(config: RunConfig) -> Iterator[str]:
    training, rollout = config.actor_config, config.generate_config
    sizes = {
        "actor_config.expert_model_parallel_size": training.expert_model_parallel_size,
        "actor_config.expert_tensor_parallel_size": training.expert_tensor_parallel_size,
    }
    stages = training.pipeline_model_parallel_size
    if config.world_size % stages == 0:
        of_a_stage = f"{_DEVICES} per pipeline stage" if stages > 1 else _DEVICES
        yield from _product_must_divide(sizes, of_a_stage, config.world_size // stages)
    tensor, expert = rollout.infer_tensor_parallel_size, rollout.infer_expert_parallel_size
    if expert not in (1, tensor):
        yield (
            f"generate_config.infer_expert_parallel_size={expert} must be 1 or equal to "
            f"generate_config.infer_tensor_parallel_size={tensor}; experts that are shared across "
            "replicas can be planned, not run"
        )


def _product_must_divide(sizes: Mapping[str, int], what: str, number: int) -> Iterator[str]:
    cut = [field for field, size in sizes.items() if size > 1]
    if cut:
        yield from must_divide(" times ".join(cut), prod(sizes.values()), what, number)


def _batches(config: RunConfig) -> Iterator[str]:
    batch = config.megatron_training.global_batch_size
    rl = config.rl_config
    yield from must_divide(
        "rl_config.mini_batch_size",
        rl.mini_batch_size,
        "megatron_training.global_batch_size",
        batch,
    )
    if config.world_size % config.ranks_per_train_replica == 0:
        replicas = config.train_data_parallel_size
        if config.sequences_per_update % replicas:
            multiple = replicas // gcd(replicas, rl.n_samples_per_prompt)
            yield (
                f"rl_config.mini_batch_size={rl.mini_batch_size} times "
                f"rl_config.n_samples_per_prompt={rl.n_samples_per_prompt} gives "
                f"{config.sequences_per_update} sequences per update, which "
                f"{replicas} data-parallel replicas must divide; "
                f"rl_config.mini_batch_size needs a multiple of {multiple}"
            )
    if rl.n_samples_per_prompt < 2:
        yield (
            f"rl_config.n_samples_per_prompt={rl.n_samples_per_prompt}: advantages are normalised "
            "over the responses to one prompt and need 2 or more"
        )


def _lengths(config: RunConfig) -> Iterator[str]:
    generate = config.generate_config
    prompt, response = config.rl_config.max_prompt_length, generate.sampling_config.max_tokens
    for field, limit in sequence_limits(config):
        if prompt + response > limit:
            yield (
                f"{field}={limit} is below rl_config.max_prompt_length={prompt} plus "
                f"generate_config.sampling_config.max_tokens={response}; needs "
                f"{prompt + response} or more"
            )
    if generate.max_num_batched_tokens < generate.max_num_seqs:
        yield (
            f"generate_config.max_num_batched_tokens={generate.max_num_batched_tokens} must be "
            f"at least generate_config.max_num_seqs={generate.max_num_seqs}"
        )


def _packing(config: RunConfig) -> Iterator[str]:
    rl = config.rl_config
    if not rl.use_dynamic_bsz:
        return
    if not rl.use_remove_padding:
        yield (
            "rl_config.use_remove_padding=false: rl_config.use_dynamic_bsz=true counts the tokens "
            "of packed sequences and needs true"
        )
    longest = rl.max_prompt_length + config.generate_config.sampling_config.max_tokens
    for name in (
        "max_packing_token_size",
        "actor_max_packing_token_size",
        "ref_max_packing_token_size",
        "update_max_packing_token_size",
    ):
        budget = getattr(rl, name)
        if budget is not None and budget < longest:
            yield (
                f"rl_config.{name}={budget} must hold the longest sequence, "
                f"rl_config.max_prompt_length={rl.max_prompt_length} plus generate_config."
                f"sampling_config.max_tokens={longest - rl.max_prompt_length}: {longest} or more"
            )


def _recompute(config: RunConfig) -> Iterator[str]:
    actor = config.actor_config
    granularity = actor.recompute_granularity
    details = {
        "recompute_method": (actor.recompute_method, "uniform or block"),
        "recompute_num_layers": (actor.recompute_num_layers, "1 or more"),
    }
    for name, (value, legal) in details.items():
        if granularity == "full" and value is None:
            yield f"actor_config.{name} is missing: recompute_granularity=full needs {legal}"
        if granularity != "full" and value is not None:
            yield (
                f"actor_config.{name}={value} has a meaning only with "
                f"actor_config.recompute_granularity=full, found {granularity}"
            )


def _choices(config: RunConfig) -> Iterator[str]:
    rl, actor = config.rl_config, config.actor_config
    if len(rl.verifier_function) != len(rl.verifier_weight) or not rl.verifier_function:
        yield (
            f"rl_config.verifier_weight has {len(rl.verifier_weight)} entries and "
            f"rl_config.verifier_function has {len(rl.verifier_function)}; "
            "each function needs one weight"
        )
    if actor.moe_grouped_gemm and not config.megatron_training.bf16:
        yield (
            "actor_config.moe_grouped_gemm=true needs megatron_training.bf16=true, found false: "
            "Megatron multiplies grouped experts in bfloat16 only"
        )
    if actor.min_lr > actor.lr:
        yield f"actor_config.min_lr={actor.min_lr:g} must not be above actor_config.lr={actor.lr:g}"
    if rl.test_freq and config.megatron_training.test_data_path is None:
        yield (
            f"rl_config.test_freq={rl.test_freq} needs megatron_training.test_data_path, found none"
        )
