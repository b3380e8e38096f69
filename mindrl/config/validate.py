"""Rules between fields: all that can be said of a configuration by itself."""

from collections.abc import Iterator
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
    for field, size in (
        ("actor_config.tensor_model_parallel_size", training.tensor_model_parallel_size),
        ("generate_config.infer_tensor_parallel_size", rollout.infer_tensor_parallel_size),
    ):
        yield from must_divide(field, size, _DEVICES, config.world_size)
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
    cut = [field for field, size in sizes.items() if size > 1]
    if cut:
        both = " times ".join(cut)
        yield from must_divide(both, prod(sizes.values()), _DEVICES, config.world_size)
    tensor, expert = rollout.infer_tensor_parallel_size, rollout.infer_expert_parallel_size
    if expert not in (1, tensor):
        yield (
            f"generate_config.infer_expert_parallel_size={expert} must be 1 or equal to "
            f"generate_config.infer_tensor_parallel_size={tensor}; experts that are shared across "
            "replicas can be planned, not run"
        )


def _batches(config: RunConfig) -> Iterator[str]:
    batch = config.megatron_training.global_batch_size
    rl = config.rl_config
    yield from must_divide(
        "rl_config.mini_batch_size",
        rl.mini_batch_size,
        "megatron_training.global_batch_size",
        batch,
    )
    if config.world_size % config.actor_config.tensor_model_parallel_size == 0:
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


def _choices(config: RunConfig) -> Iterator[str]:
    rl, actor = config.rl_config, config.actor_config
    if len(rl.verifier_function) != len(rl.verifier_weight) or not rl.verifier_function:
        yield (
            f"rl_config.verifier_weight has {len(rl.verifier_weight)} entries and "
            f"rl_config.verifier_function has {len(rl.verifier_function)}; "
            "each function needs one weight"
        )
    if actor.min_lr > actor.lr:
        yield f"actor_config.min_lr={actor.min_lr:g} must not be above actor_config.lr={actor.lr:g}"
    if rl.test_freq and config.megatron_training.test_data_path is None:
        yield (
            f"rl_config.test_freq={rl.test_freq} needs megatron_training.test_data_path, found none"
        )
