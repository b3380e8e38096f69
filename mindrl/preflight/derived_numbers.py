"""The numbers that follow from a configuration, for a person to read before a run."""

from rich.table import Table

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.platform.device import Platform
from mindrl.preflight.logprob_gap import logprob_gap_text


def derived_numbers(config: RunConfig, platform: Platform) -> dict[str, str]:
    """Return what a configuration comes to, in the order that a person asks."""
    generate, rl = config.generate_config, config.rl_config
    training = config.megatron_training
    return {
        "devices (ranks)": f"{config.world_size} x {platform.ray_resource}",
        "training": _role_sizes(config, "actor"),
        "rollout": _sizes(
            TP=generate.infer_tensor_parallel_size,
            EP=generate.infer_expert_parallel_size,
            DP=config.rollout_layout.dp,
        ),
        "prompts per step": str(training.global_batch_size),
        "sequences per step": f"{config.sequences_per_step} ({rl.n_samples_per_prompt} a prompt)",
        "sequences per update": str(config.sequences_per_update),
        "sequences per update and replica": str(
            config.sequences_per_update // config.layout("actor").dp
        ),
        "micro-batch": _micro_batch(config),
        "updates per step": f"{config.updates_per_step} ({rl.epochs} epoch(s))",
        "steps": str(training.train_iters),
        "updates in all": str(config.total_updates),
        "longest sequence": (
            f"{rl.max_prompt_length} prompt + {generate.sampling_config.max_tokens} response "
            f"of {training.seq_length} tokens"
        ),
        "precision": f"training {'bf16' if training.bf16 else 'fp32'}, rollout {generate.dtype}",
        "log-prob gap": logprob_gap_text(config),
        "reference": _role(config, "ref") or "none (init_kl_coef is 0)",
        **_further_roles(config),
        "rewards": _rewards(config),
    }


def _further_roles(config: RunConfig) -> dict[str, str]:
    """List the roles that most runs do not have, where there are any."""
    named = {"critic": _role(config, "critic"), "reward model": _role(config, "reward")}
    return {name: text for name, text in named.items() if text}


def _role(config: RunConfig, role: Role) -> str:
    """Say where a role beside the actor comes from, and its layout where that is its own."""
    if role not in config.roles:
        return ""
    sizes, path = _role_sizes(config, role), config.model_path(role)
    return path if sizes == _role_sizes(config, "actor") else f"{path} ({sizes})"


def _role_sizes(config: RunConfig, role: Role) -> str:
    sizes = config.layout(role)
    return _sizes(
        TP=sizes.tp,
        CP=sizes.cp,
        PP=sizes.pp,
        VPP=sizes.vpp,
        EP=sizes.ep,
        ETP=sizes.etp,
        DP=sizes.dp,
    )


def _rewards(config: RunConfig) -> str:
    rl, model = config.rl_config, config.reward_config
    weighed = [*zip(rl.verifier_function, rl.verifier_weight, strict=True)]
    if model:
        weighed.append(("reward model", model.weight))
    return ", ".join(f"{weight:g} x {name}" for name, weight in weighed)


def _micro_batch(config: RunConfig) -> str:
    rl, count = config.rl_config, config.actor_config.micro_batch_size
    if rl.use_dynamic_bsz:
        budget = rl.update_max_packing_token_size or rl.max_packing_token_size
        return f"up to {budget} tokens, packed"
    return f"{count} sequence(s), {'packed' if rl.use_remove_padding else 'padded'}"


def _sizes(**sizes: int) -> str:
    """Spell parallel sizes; those of experts only where there are any."""
    return ", ".join(
        f"{name} {size}" for name, size in sizes.items() if size > 1 or name in {"TP", "DP"}
    )


def render_numbers(numbers: dict[str, str]) -> Table:
    """Lay the numbers out for a terminal."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in numbers.items():
        table.add_row(name, value)
    return table
