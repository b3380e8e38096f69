"""Rules between fields: all that can be said of a configuration by itself."""

from collections.abc import Iterator, Mapping
from math import gcd, isqrt, prod

from mindrl.config.layout_sizes import LayoutSizes, Role
from mindrl.config.role import LearningConfig
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
        *_learning(config),
        *_estimator(config),
        *_choices(config),
    ]


def layout_findings(config: RunConfig) -> list[str]:
    """Return what keeps the layouts of the roles and of the rollout from being made."""
    found = [each for role in config.roles for each in role_findings(config, role)]
    # A size that several roles take from the actor is named once.
    return [*dict.fromkeys(found), *_sequence_parallel(config), *_rollout(config)]


def role_findings(config: RunConfig, role: Role) -> Iterator[str]:
    """Say what keeps the layout of a role from being made."""
    sizes = config.layout_sizes(role)
    yield from _product_must_divide(sizes, ("tp", "cp", "pp"), _DEVICES, config.world_size)
    if config.world_size % sizes.pp == 0:
        of_a_stage = f"{_DEVICES} per pipeline stage" if sizes.pp > 1 else _DEVICES
        ranks = config.world_size // sizes.pp
        yield from _product_must_divide(sizes, ("ep", "etp"), of_a_stage, ranks)


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


def _product_must_divide(
    sizes: LayoutSizes, names: tuple[str, ...], what: str, number: int
) -> Iterator[str]:
    values: Mapping[str, int] = {name: getattr(sizes, name) for name in names}
    cut = [sizes.keys[name] for name, size in values.items() if size > 1]
    if cut:
        yield from must_divide(" times ".join(cut), prod(values.values()), what, number)


def _sequence_parallel(config: RunConfig) -> Iterator[str]:
    sizes = [config.layout_sizes(role).tp for role in config.roles]
    if config.megatron_training.sequence_parallel and max(sizes) == 1:
        yield (
            "megatron_training.sequence_parallel=true needs a tensor_model_parallel_size of 2 or "
            "more, found actor_config.tensor_model_parallel_size=1 and no larger one"
        )


def _rollout(config: RunConfig) -> Iterator[str]:
    rollout = config.generate_config
    tensor, expert = rollout.infer_tensor_parallel_size, rollout.infer_expert_parallel_size
    yield from must_divide(
        "generate_config.infer_tensor_parallel_size", tensor, _DEVICES, config.world_size
    )
    if expert not in (1, tensor):
        yield (
            f"generate_config.infer_expert_parallel_size={expert} must be 1 or equal to "
            f"generate_config.infer_tensor_parallel_size={tensor}; experts that are shared across "
            "replicas can be planned, not run"
        )


def _batches(config: RunConfig) -> Iterator[str]:
    yield from must_divide(
        "rl_config.mini_batch_size",
        config.rl_config.mini_batch_size,
        "megatron_training.global_batch_size",
        config.megatron_training.global_batch_size,
    )
    for role in config.roles:
        if config.world_size % config.layout_sizes(role).ranks_per_replica == 0:
            yield from _shares(config, role)


def _shares(config: RunConfig, role: Role) -> Iterator[str]:
    """Say so where a role's replicas cannot have equally many sequences."""
    rl, replicas = config.rl_config, config.data_parallel_size(role)
    learns = role in ("actor", "critic")
    count = config.sequences_per_update if learns else config.sequences_per_step
    if count % replicas == 0:
        return
    field, value = (
        ("rl_config.mini_batch_size", rl.mini_batch_size)
        if learns
        else ("megatron_training.global_batch_size", config.megatron_training.global_batch_size)
    )
    multiple = replicas // gcd(replicas, rl.n_samples_per_prompt)
    owner = "" if role == "actor" else f" of {role}_config"
    yield (
        f"{field}={value} times rl_config.n_samples_per_prompt={rl.n_samples_per_prompt} gives "
        f"{count} sequences per {'update' if learns else 'step'}, which {replicas} data-parallel "
        f"replicas{owner} must divide; {field} needs a multiple of {multiple}"
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


def _learning(config: RunConfig) -> Iterator[str]:
    yield from _of_a_learner(config, "actor_config", config.actor_config)
    if config.critic_config:
        yield from _of_a_learner(config, "critic_config", config.critic_config)


def _of_a_learner(config: RunConfig, section: str, role: LearningConfig) -> Iterator[str]:
    granularity = role.recompute_granularity
    details = {
        "recompute_method": (role.recompute_method, "uniform or block"),
        "recompute_num_layers": (role.recompute_num_layers, "1 or more"),
    }
    for name, (value, legal) in details.items():
        if granularity == "full" and value is None:
            yield f"{section}.{name} is missing: recompute_granularity=full needs {legal}"
        if granularity != "full" and value is not None:
            yield (
                f"{section}.{name}={value} has a meaning only with "
                f"{section}.recompute_granularity=full, found {granularity}"
            )
    if role.moe_grouped_gemm and not config.megatron_training.bf16:
        yield (
            f"{section}.moe_grouped_gemm=true needs megatron_training.bf16=true, found false: "
            "Megatron multiplies grouped experts in bfloat16 only"
        )
    if role.min_lr > role.lr:
        yield f"{section}.min_lr={role.min_lr:g} must not be above {section}.lr={role.lr:g}"


def _estimator(config: RunConfig) -> Iterator[str]:
    rl = config.rl_config
    if rl.adv_estimator == "gae":
        if config.critic_config is None:
            yield "critic_config is missing: rl_config.adv_estimator=gae needs one, empty or not"
        if rl.critic_warmup >= config.megatron_training.train_iters:
            yield (
                f"rl_config.critic_warmup={rl.critic_warmup} must be below "
                f"megatron_training.train_iters={config.megatron_training.train_iters}"
            )
        return
    if config.critic_config is not None:
        yield "critic_config is given: rl_config.adv_estimator=group_norm has no critic; use gae"
    if rl.use_kl_in_reward:
        yield "rl_config.use_kl_in_reward=true needs rl_config.adv_estimator=gae, found group_norm"
    if rl.critic_warmup:
        yield (
            f"rl_config.critic_warmup={rl.critic_warmup} needs rl_config.adv_estimator=gae, "
            "found group_norm"
        )
    if rl.n_samples_per_prompt < 2:
        yield (
            f"rl_config.n_samples_per_prompt={rl.n_samples_per_prompt}: advantages are normalised "
            "over the responses to one prompt and need 2 or more"
        )


def _choices(config: RunConfig) -> Iterator[str]:
    rl, test_data = config.rl_config, config.megatron_training.test_data_path
    weights, functions = len(rl.verifier_weight), len(rl.verifier_function)
    if weights != functions or not (functions or config.reward_config):
        yield (
            f"rl_config.verifier_weight has {weights} entries and "
            f"rl_config.verifier_function has {functions}; each function needs one weight"
        )
    elif not functions and test_data is not None:
        yield (
            "rl_config.verifier_function is empty: its first entry measures the accuracy on "
            f"megatron_training.test_data_path={test_data}; name one, or evaluate nothing"
        )
    if rl.test_freq and test_data is None:
        yield (
            f"rl_config.test_freq={rl.test_freq} needs megatron_training.test_data_path, found none"
        )
    ours, theirs = config.ref_config.load, rl.integrated_mode_config.ref_model_load_path
    if ours and theirs and ours != theirs:
        yield (
            f"ref_config.load={ours} and "
            f"rl_config.integrated_mode_config.ref_model_load_path={theirs} are two names of one "
            "folder; give one of them"
        )
