"""Estimates of the activations of each phase, from a configuration; see models/activations."""

from mindrl.config.layout_keys import Role
from mindrl.config.role import LearningConfig
from mindrl.config.run import RunConfig
from mindrl.memory.activations import Passes, forward_estimate, logits_estimate, update_estimate
from mindrl.memory.regions import CHANGED_BY, Phase
from mindrl.preflight.run_plan import RunPlan


def activation_estimates(plan: RunPlan) -> dict[Phase, int]:
    """Estimate the bytes that each phase of the training side needs besides its regions.

    For a micro-batch of the longest sequences on the rank that needs most. What the rollout
    engine needs besides weights and KV cache is not estimated.
    """
    config = plan.config
    rl, actor = config.rl_config, config.actor_config
    actors = rl.actor_forward_micro_batch_size or actor.micro_batch_size
    references = rl.ref_forward_micro_batch_size or actor.micro_batch_size
    micro_batches: tuple[tuple[Phase, Role, int, int | None], ...] = (
        (Phase.FORWARD, "actor", actors, rl.actor_max_packing_token_size),
        (Phase.REFERENCE, "ref", references, rl.ref_max_packing_token_size),
        (Phase.REWARD, "reward", config.reward_forward_micro_batch_size, None),
        (Phase.CRITIC_FORWARD, "critic", config.critic_forward_micro_batch_size, None),
        (Phase.CRITIC_TRAIN, "critic", config.critic_micro_batch_size, None),
        (Phase.TRAIN, "actor", actor.micro_batch_size, rl.update_max_packing_token_size),
    )
    found = {}
    for phase, role, sequences, budget in micro_batches:
        if role in config.roles:
            passes = _passes(plan, role, _tokens(config, sequences, budget))
            estimate = update_estimate if phase in CHANGED_BY else forward_estimate
            found[phase] = estimate(plan.models[role], passes)
            found[phase] += _logits(plan, role)
    return found


def _tokens(config: RunConfig, sequences: int, budget: int | None) -> int:
    rl = config.rl_config
    if rl.use_dynamic_bsz:
        return budget or rl.max_packing_token_size
    longest = rl.max_prompt_length + config.generate_config.sampling_config.max_tokens
    return sequences * min(config.megatron_training.seq_length, longest)


def _logits(plan: RunPlan, role: Role) -> int:
    """Estimate the logits of a role; a value head has none."""
    if role in ("critic", "reward"):
        return 0
    tp, chunk = plan.layouts[role].tp, plan.config.actor_config.logprob_chunk_tokens
    return logits_estimate(plan.models[role], tp, chunk)


def _passes(plan: RunPlan, role: Role, tokens: int) -> Passes:
    config, layout = plan.config, plan.layouts[role]
    learning: LearningConfig = config.actor_config
    if role == "critic" and config.critic_config is not None:
        learning = config.critic_config
    has_cut_tokens = config.megatron_training.sequence_parallel or (
        plan.models[role].moe is not None
    )
    return Passes(
        layout=layout,
        dtype=plan.train_dtype,
        sequence_parallel=has_cut_tokens and layout.tp > 1,
        tokens=tokens,
        recompute=learning.recompute_granularity,
        recompute_method=learning.recompute_method,
        recompute_layers=learning.recompute_num_layers,
    )
