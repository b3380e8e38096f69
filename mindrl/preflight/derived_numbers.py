"""The numbers that follow from a configuration alone, and for a person all of them in a list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.table import Table

from mindrl.batch.balance import MicroBatching
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.platform.device import Platform
from mindrl.preflight.logprob_gap import logprob_gap_text


@dataclass(frozen=True, kw_only=True)
class BatchFigures:
    """What a step does, counted."""

    prompts_per_step: int
    sequences_per_step: int
    rollout_sequences_per_replica: int
    """Of the replica with most."""
    rollout_sequences_at_a_time: int
    """Of one replica."""
    updates_per_step: int
    sequences_per_update: int
    micro_batches_of_replica: dict[str, int] | None
    """By the pass: of log-probs, values and scores in a step, and of one update. None where tokens
    cut them, whose number is not known before."""
    longest_sequence_tokens: int
    updates_in_all: int


def derived_numbers(config: RunConfig, platform: Platform) -> dict[str, str]:
    """Return what a configuration comes to, in the order that a person asks."""
    generate, rl = config.generate_config, config.rl_config
    training, batch = config.megatron_training, batch_figures(config)
    return {
        "devices (ranks)": f"{config.world_size} x {platform.ray_resource}",
        "training": _role_sizes(config, "actor"),
        "rollout": _sizes(config.rollout_layout, "tp", "ep", "dp"),
        "prompts per step": str(batch.prompts_per_step),
        "sequences per step": f"{batch.sequences_per_step} ({rl.n_samples_per_prompt} a prompt)",
        "sequences per update": str(batch.sequences_per_update),
        "sequences per update and replica": str(
            batch.sequences_per_update // config.layout("actor").dp
        ),
        "micro-batch": _micro_batch(config),
        "updates per step": f"{batch.updates_per_step} ({rl.epochs} epoch(s))",
        "steps": str(training.train_iters),
        "updates in all": str(batch.updates_in_all),
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
    return _sizes(config.layout(role), "tp", "cp", "pp", "vpp", "ep", "etp", "dp")


def _sizes(layout: TrainLayout | RolloutLayout, *names: str) -> str:
    return spelled_sizes({name: getattr(layout, name) for name in names})


def _rewards(config: RunConfig) -> str:
    rl, model = config.rl_config, config.reward_config
    weighed = [*zip(rl.verifier_function, rl.verifier_weight, strict=True)]
    if model:
        weighed.append(("reward model", model.weight))
    return ", ".join(f"{weight:g} x {name}" for name, weight in weighed)


def _micro_batch(config: RunConfig) -> str:
    cut = config.update_micro_batching("actor")
    if cut.tokens is not None:
        return f"up to {cut.tokens} tokens, packed"
    packed = "packed" if config.rl_config.use_remove_padding else "padded"
    return f"{cut.sequences} sequence(s), {packed}"


def spelled_sizes(sizes: Mapping[str, int]) -> str:
    """Spell parallel sizes by their short names; of those that are 1 only `tp` and `dp`."""
    return ", ".join(
        f"{name.upper()} {size}" for name, size in sizes.items() if size > 1 or name in ("tp", "dp")
    )


def batch_figures(config: RunConfig) -> BatchFigures:
    """Count what a step does."""
    generate, rl = config.generate_config, config.rl_config
    of_replica = -(-config.sequences_per_step // config.rollout_layout.dp)
    return BatchFigures(
        prompts_per_step=config.megatron_training.global_batch_size,
        sequences_per_step=config.sequences_per_step,
        rollout_sequences_per_replica=of_replica,
        rollout_sequences_at_a_time=min(of_replica, generate.max_num_seqs),
        updates_per_step=config.updates_per_step,
        sequences_per_update=config.sequences_per_update,
        micro_batches_of_replica=None if rl.use_dynamic_bsz else _micro_batches(config),
        longest_sequence_tokens=rl.max_prompt_length + generate.sampling_config.max_tokens,
        updates_in_all=config.total_updates("actor"),
    )


def _micro_batches(config: RunConfig) -> dict[str, int]:
    """Count the micro-batches of one replica, pass by pass."""
    step, update = config.sequences_per_step, config.sequences_per_update
    forward, learn = config.forward_micro_batching, config.update_micro_batching
    passes: tuple[tuple[str, Role, int, Callable[[Role], MicroBatching]], ...] = (
        ("reward", "reward", step, forward),
        ("reference", "ref", step, forward),
        ("forward", "actor", step, forward),
        ("critic_forward", "critic", step, forward),
        ("critic_update", "critic", update, learn),
        ("update", "actor", update, learn),
    )
    return {
        name: -(-sequences // config.layout(role).dp // cut(role).sequences)
        for name, role, sequences, cut in passes
        if role in config.roles
    }


def render_numbers(numbers: dict[str, str]) -> Table:
    """Lay the numbers out for a terminal."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in numbers.items():
        table.add_row(name, value)
    return table
