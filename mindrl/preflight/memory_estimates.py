"""Estimates of the activations of each phase, from a configuration; see models/activations."""

from mindrl.batch.balance import MicroBatching
from mindrl.config.layout_keys import Role
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
    phases: tuple[tuple[Phase, Role], ...] = (
        (Phase.FORWARD, "actor"),
        (Phase.REFERENCE, "ref"),
        (Phase.REWARD, "reward"),
        (Phase.CRITIC_FORWARD, "critic"),
        (Phase.CRITIC_TRAIN, "critic"),
        (Phase.TRAIN, "actor"),
    )
    found = {}
    for phase, role in phases:
        if role not in config.roles:
            continue
        learns = phase in CHANGED_BY
        cut = (config.update_micro_batching if learns else config.forward_micro_batching)(role)
        estimate = update_estimate if learns else forward_estimate
        found[phase] = estimate(plan.models[role], _passes(plan, role, _tokens(config, cut)))
        found[phase] += _logits(plan, role)
    return found


def _tokens(config: RunConfig, cut: MicroBatching) -> int:
    """Return the tokens of the largest micro-batch."""
    longest = config.rl_config.max_prompt_length + config.generate_config.sampling_config.max_tokens
    return cut.tokens or cut.sequences * min(config.megatron_training.seq_length, longest)


def _logits(plan: RunPlan, role: Role) -> int:
    """Estimate the logits of a role; a value head has none."""
    if role in ("critic", "reward"):
        return 0
    tp, chunk = plan.layouts[role].tp, plan.config.actor_config.logprob_chunk_tokens
    return logits_estimate(plan.models[role], tp, chunk)


def _passes(plan: RunPlan, role: Role, tokens: int) -> Passes:
    config, layout = plan.config, plan.layouts[role]
    learning = config.learning(role)
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
