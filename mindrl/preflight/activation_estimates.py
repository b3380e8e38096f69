"""Estimated activations of a run, by phase. Needs no torch."""

from mindrl.memory.activations import Passes, forward_estimate, logits_estimate, update_estimate
from mindrl.memory.schedule import PHASE_ROLES, UPDATES, Phase
from mindrl.preflight.picture_memory import tower_estimate
from mindrl.preflight.role_heads import role_head
from mindrl.preflight.route_memory import replayed_bytes
from mindrl.preflight.run_shardings import RunPlan


def activation_estimates(plan: RunPlan) -> dict[Phase, int]:
    """Estimate the bytes that each phase of the training side needs in addition to its regions.

    Counts a micro-batch of the longest sequences on the rank that needs most, without the rollout.
    """
    config, training = plan.config, plan.config.megatron_training
    longest = config.rl_config.max_prompt_length + config.generate_config.sampling_config.max_tokens
    found: dict[Phase, int] = {}
    for phase, role in PHASE_ROLES.items():
        if role not in config.roles:
            continue
        model, layout = plan.models[role], plan.layouts[role]
        cut = config.micro_batching(role, learns=phase in UPDATES)
        passes = Passes(
            layout=layout,
            dtype=plan.train_dtype,
            sequence_parallel=layout.tp > 1
            and (training.sequence_parallel or model.is_routed_by_own_tokens),
            tokens=cut.tokens or cut.sequences * min(training.seq_length, longest),
            copies=plan.planning(role).copies,
            learning=config.learning(role),
            candidates=plan.likely_tokens(role, learns=phase in UPDATES),
        )
        found[phase] = (update_estimate if phase in UPDATES else forward_estimate)(model, passes)
        if phase is Phase.TRAIN:
            found[phase] += replayed_bytes(plan)
        found[phase] += plan.planning(role).borrowed_bytes(
            model,
            layout,
            plan.train_dtype,
            head=role_head(config, role),
            learns=phase in UPDATES,
            low_rank=plan.low_rank if role == "actor" else None,
        )
        if role_head(config, role) == "vocabulary":
            chunk = config.actor_config.logprob_chunk_tokens
            found[phase] += logits_estimate(model, layout.tp, chunk)
        tower = tower_estimate(plan, role, passes.tokens, learns=phase in UPDATES)
        found[phase] = max(found[phase] + tower.kept, tower.most)
    return found
