"""Numbers derived from a configuration alone."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from mindrl.config.backends import TRAINING_BACKEND
from mindrl.config.layout_keys import SIZE_KEYS, Role
from mindrl.config.run import RunConfig
from mindrl.memory.schedule import PHASE_ROLES, UPDATES, step_phases
from mindrl.platform.device import Platform
from mindrl.tracking.opened import tracking_text

_GAP_FLOAT32 = 0.01
_GAP_BF16 = 0.1
_GAP_INT8 = 0.3
_GAP_BF16_EXPERTS = 0.3
"""Nats. Some tokens are routed to other experts on the two sides: healthy runs have 0.02 to
0.06."""

_OF_REWARDS = (
    *("rollout", "prompts per step", "old log-probs", "rollout correction", "log-prob gap"),
    *("reference", "rewards"),
)
"""Numbers of runs that generate responses and train on rewards."""


def derived_numbers(config: RunConfig, platform: Platform) -> dict[str, str]:
    """Return the derived numbers of a configuration, in the order of interest."""
    generate, rl = config.generate_config, config.rl_config
    training, rollout = config.megatron_training, config.rollout_layout
    others: dict[str, Role] = {"critic": "critic", "teacher": "teacher", "reward model": "reward"}
    further = {name: _role(config, role) for name, role in others.items()}
    found = {
        "devices (ranks)": f"{config.devices} x {platform.ray_resource}",
        **({"placement": placement_text(config)} if config.is_apart else {}),
        **({"order of steps": order} if (order := order_text(config)) else {}),
        **({"roles": roles_text(config)} if config.is_spread else {}),
        "training": _role_sizes(config, "actor"),
        "rollout": spelled_sizes(
            {name: getattr(rollout, name) for name in ("tp", "pp", "ep", "dp")}
        ),
        "prompts per step": str(training.global_batch_size),
        "sequences per step": f"{config.sequences_per_step} ({rl.n_samples_per_prompt} per prompt)",
        "sequences per update": str(config.sequences_per_update),
        "sequences per update and replica": str(
            config.sequences_per_update // config.layout("actor").dp
        ),
        "micro-batch": _micro_batch(config),
        "updates per step": f"{config.updates_per_step} ({rl.epochs} epoch(s))",
        "steps": str(training.train_iters),
        "updates in all": str(config.total_updates("actor")),
        "longest sequence": (
            f"{rl.max_prompt_length} prompt + {generate.sampling_config.max_tokens} response "
            f"of {training.seq_length} tokens"
        ),
        "precision": f"training {'bf16' if training.bf16 else 'fp32'}, rollout {generate.dtype}",
        "old log-probs": _old_log_probs(config),
        "rollout correction": _correction(config),
        "log-prob gap": logprob_gap_text(config),
        "reference": _reference(config),
        **{name: text for name, text in further.items() if text},
        "rewards": _rewards(config),
        **({"metrics go to": places} if (places := tracking_text(config)) else {}),
    }
    if not config.reads_answers:
        return found
    # Without rollouts and rewards these numbers have no meaning.
    kept = {name: text for name, text in found.items() if name not in _OF_REWARDS}
    precision = "bf16" if training.bf16 else "fp32"
    longest = f"{training.seq_length} tokens"
    return kept | {"longest sequence": longest, "precision": precision} | _lesson(config)


def _lesson(config: RunConfig) -> dict[str, str]:
    """Return what a run trained on the answers of rows learns."""
    sft, preference = config.sft_config, config.preference_config
    if preference is not None:
        learns = f"preferences ({preference.loss})"
        if preference.trains_rewards:
            return {"learns": f"{learns}, as a reward model"}
        return {"learns": learns, "reference": _reference(config)}
    assert sft is not None, "the run is supervised"
    column = sft.response_column
    answers = "each answer of a conversation" if sft.turns == "all" else "its last answer"
    return {"learns": answers if column is None else f"column {column}"}


def placement_text(config: RunConfig) -> str:
    """Describe which devices train and which generate, by node."""
    placement, worlds = config.placement, len(config.placement.first_nodes)
    size = config.rollout_layout.world_size // config.rollout_layout.replicas
    sizes = [config.world_size, *[size] * (worlds - 1)]
    names = ["training", *(f"replica {number}" for number in range(worlds - 1))]
    said = []
    for world, (name, count) in enumerate(zip(names, sizes, strict=True)):
        nodes = dict.fromkeys(placement.nodes(world, count))
        where = f"node {', '.join(map(str, nodes))}" if len(placement.shares) > 1 else ""
        said.append(f"{name} on {count}" + (f" ({where})" if where else ""))
    if file := config.generate_config.servers_file:
        most = config.rollout_layout.replicas
        return "; ".join([*said, f"up to {most} replica(s) at the addresses in {file}"])
    if servers := config.generate_config.servers:
        return "; ".join([*said, *(f"replica {at} at {url}" for at, url in enumerate(servers))])
    order = "rollout first" if config.rl_config.rollout_resource.first else "training first"
    return f"{'; '.join(said)}; {order}"


def order_text(config: RunConfig) -> str:
    """Describe the order of rollout and training, and token ages; empty if in turns and shared."""
    rl, prompts = config.rl_config, config.megatron_training.global_batch_size
    age, ahead = (
        f"tokens from up to {rl.max_staleness} step(s) ago",
        (1 + rl.max_staleness) * prompts,
    )
    if rl.debug is not None:
        return f"{rl.debug}: one half of each step"
    if (job := config.spool_config.job) is not None:
        return f"{job} job (one of two), {age}"
    if rl.partial_rollout:
        return f"partial rollout, {ceil(rl.groups_in_flight * prompts)} prompts in flight, {age}"
    orders = {
        "in_turns": "in turns" if config.is_apart else "",
        "one_step_off": "one step off, tokens from 1 step ago",
        "asynchronous": f"asynchronous, {ahead} prompts in flight, {age}",
    }
    return orders[rl.step_order]


def roles_text(config: RunConfig) -> str:
    """Describe the training devices of each role."""
    places = {role: config.role_devices(role) for role in config.roles}
    return "; ".join(f"{role} on {at.start} to {at.stop - 1}" for role, at in places.items())


def _old_log_probs(config: RunConfig) -> str:
    needs = f" ({config.needs_log_prob_pass})" if config.old_log_probs == "recompute" else ""
    return f"{config.old_log_probs}{needs}"


def _correction(config: RunConfig) -> str:
    options = config.rollout_correction
    if options is None:
        return "none"
    bounds = {"above": options.reject_above, "below": options.reject_below}
    rejected = [f"{side} {bound:g}" for side, bound in bounds.items() if bound]
    weighed = f"{options.level}, {options.beyond} beyond {options.max_weight:g}"
    parts = [weighed] if options.level != "off" else []
    return "; ".join([*parts, *([f"reject {' or '.join(rejected)}"] if rejected else [])])


def _reference(config: RunConfig) -> str:
    if config.reference_is_base:
        return "the actor without its adapters"
    return _role(config, "ref") or "none (init_kl_coef is 0)"


def _role(config: RunConfig, role: Role) -> str:
    """Return the model folder of a role other than the actor, with its layout if different."""
    if role not in config.roles:
        return ""
    sizes, path = _role_sizes(config, role), config.model_path(role)
    return path if sizes == _role_sizes(config, "actor") else f"{path} ({sizes})"


def _role_sizes(config: RunConfig, role: Role) -> str:
    layout, backend = config.layout(role), config.training_backend(role)
    sizes = spelled_sizes({name: getattr(layout, name) for name in (*SIZE_KEYS, "dp")})
    return sizes if backend == TRAINING_BACKEND else f"{backend}: {sizes}"


def _rewards(config: RunConfig) -> str:
    rl, model = config.rl_config, config.reward_config
    weighed = [*zip(rl.verifier_function, rl.verifier_weight, strict=True)]
    if model:
        weighed.append(("reward model", model.weight))
    return ", ".join(f"{weight:g} x {name}" for name, weight in weighed)


def _micro_batch(config: RunConfig) -> str:
    cut = config.micro_batching("actor", learns=True)
    if cut.tokens is not None:
        return f"up to {cut.tokens} tokens, packed"
    packed = "packed" if config.rl_config.use_remove_padding else "padded"
    return f"{cut.sequences} sequence(s), {packed}"


def spelled_sizes(sizes: Mapping[str, int]) -> str:
    """Format parallel sizes by their short names; sizes of 1 are omitted except `tp` and `dp`."""
    return ", ".join(
        f"{name.upper()} {size}" for name, size in sizes.items() if size > 1 or name in ("tp", "dp")
    )


def batch_figures(config: RunConfig) -> dict[str, Any]:
    """Return the counts of a step; for rollout those of the replica with most sequences."""
    generate, rl = config.generate_config, config.rl_config
    of_replica = -(-config.sequences_per_step // config.rollout_layout.dp)
    return {
        "prompts_per_step": config.megatron_training.global_batch_size,
        "sequences_per_step": config.sequences_per_step,
        "rollout_sequences_per_replica": of_replica,
        "rollout_sequences_at_a_time": min(of_replica, generate.max_num_seqs),
        "updates_per_step": config.updates_per_step,
        "sequences_per_update": config.sequences_per_update,
        # None with token budgets, where the number is not known in advance.
        "micro_batches_of_replica": None if rl.use_dynamic_bsz else _micro_batches(config),
        "longest_sequence_tokens": rl.max_prompt_length + generate.sampling_config.max_tokens,
        "updates_in_all": config.total_updates("actor"),
    }


def _micro_batches(config: RunConfig) -> dict[str, int]:
    """Return the micro-batches of one replica per step; for an update phase, per update."""
    step, update = config.sequences_per_step, config.sequences_per_update
    return {
        phase.value.replace("train", "update"): -(
            -(update if phase in UPDATES else step)
            // config.layout(role).dp
            // config.micro_batching(role, learns=phase in UPDATES).sequences
        )
        for phase, role in PHASE_ROLES.items()
        if phase in step_phases(config.roles, reads_actor=config.reads_actor)
    }


def logprob_gap_limit(config: RunConfig, *, has_experts: bool) -> float | None:
    """Return the limit of a run in nats; None without a limit."""
    asked = config.rl_config.max_logprob_gap
    if asked is not None:
        return asked
    if config.generate_config.sampling_config.cuts:
        # The engine's log-probs are of a truncated distribution, the trainer's are not.
        return None
    if config.generate_config.quantization:
        return _GAP_INT8
    if not config.megatron_training.bf16 and config.generate_config.is_exact:
        return _GAP_FLOAT32
    return _GAP_BF16_EXPERTS if has_experts else _GAP_BF16


def logprob_gap_text(config: RunConfig) -> str:
    """Describe the limit of a run for any model, and the tokens that it applies to."""
    dense, experts = (logprob_gap_limit(config, has_experts=each) for each in (False, True))
    cuts = config.generate_config.sampling_config.cuts
    if dense is None:
        return f"not checked: {cuts} (rl_config.max_logprob_gap sets a limit)"
    floor = f"; with {cuts} the engine's log-probs are of a truncated distribution" if cuts else ""
    probe = (
        "; only tokens generated after each sync count"
        if config.rl_config.step_order != "in_turns"
        else ""
    )
    mixture = "" if experts == dense else f" ({experts:g} with experts)"
    steps = config.rl_config.logprob_gap_steps
    return f"warns beyond {dense:g} nats{mixture}, ends after {steps} steps{floor}{probe}"
