"""Assemble the parts of a run on the driver."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from mindrl.agents.host import AgentHost
from mindrl.algorithms.length_penalty import LengthPenalty
from mindrl.batch.balance import sequence_costs
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.environments.host import EnvironmentHost
from mindrl.launch.served_teacher import served_teacher
from mindrl.models.decoder import forward_cost
from mindrl.platform.device import DeviceKind
from mindrl.preflight.derived_numbers import logprob_gap_limit
from mindrl.preflight.run_shardings import RunPlan
from mindrl.preflight.shared_prompts import shares_prompts
from mindrl.rewards.scorer import RewardScorer
from mindrl.trainer.engines import ColocatedEngines, Engines
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.preference_trainer import PreferenceTrainer
from mindrl.trainer.ranks import Ranks
from mindrl.trainer.reward_manager import RewardSources
from mindrl.trainer.reward_model_trainer import RewardModelTrainer
from mindrl.trainer.run_log import RunLog
from mindrl.trainer.supervised_trainer import AnswerTrainer, SupervisedTrainer
from mindrl.trainer.training_loop import TrainingLoop
from mindrl.trainer.worker_handle import WorkerHandle


@dataclass(frozen=True)
class Raters:
    """Processes that rate responses, which outlive the workers."""

    scorer: RewardScorer | None
    environments: EnvironmentHost | AgentHost | None


def loop_kind(config: RunConfig) -> type[TrainingLoop[Any, Any]]:
    """Return the loop of a run: it trains on answers in rows, or on its policy's responses."""
    if config.sft_config is not None:
        return SupervisedTrainer
    if (preferences := config.preference_config) is not None:
        return RewardModelTrainer if preferences.trains_rewards else PreferenceTrainer
    return PolicyTrainer


def loop_of(
    plan: RunPlan,
    data: RunData,
    actor: WorkerHandle,
    raters: Raters,
    run_log: RunLog,
) -> TrainingLoop[Any, Any]:
    """Return the loop of a run."""
    kind = loop_kind(plan.config)
    if issubclass(kind, AnswerTrainer):
        return kind(plan.config, data, actor, run_log)
    return trainer_of(plan, data, actor, raters, run_log)


def trainer_of(
    plan: RunPlan,
    data: RunData,
    actor: WorkerHandle,
    raters: Raters,
    run_log: RunLog,
) -> PolicyTrainer:
    """Return the policy trainer of a run."""
    config, rl, penalty = plan.config, plan.config.rl_config, None
    turns = config.environment_config
    # With two jobs, the train job adds the other scores.
    only_rules = config.spool_config.job == "rollout"
    if rl.overlong_buffer_enable and not only_rules:
        longest = config.generate_config.sampling_config.max_tokens
        penalty = LengthPenalty(
            longest=longest,
            buffer=rl.overlong_tokens(longest),
            factor=rl.overlong_buffer_penalty_factor,
        )
    rewards = RewardSources(
        scorer=raters.scorer,
        environments=raters.environments,
        environment_weight=turns.reward_weight if turns else 0.0,
        reward_model=actor if config.reward_config and config.learns else None,
        reward_model_weight=config.reward_config.weight if config.reward_config else 0.0,
        length_penalty=penalty,
    )
    gap = logprob_gap_limit(config, has_experts=plan.models["actor"].moe is not None)
    return PolicyTrainer(config, data, actor, rewards, run_log, max_logprob_gap=gap)


def worker_handle(
    group: Ranks, plan: RunPlan, engines: Engines | None = None, *, kind: DeviceKind = "cpu"
) -> WorkerHandle:
    """Return the interface to the workers, which balances batches by cost, or by count.

    The engines are those of the group, unless others are given; `kind` is that of its devices.
    """
    costs, shares = None, frozenset[Role]()
    if plan.config.rl_config.use_dynamic_bsz:
        linear, quadratic = forward_cost(plan.models["actor"])
        models = plan.models.items()
        shares = frozenset(
            role for role, model in models if shares_prompts(plan.config, role, model, kind)
        )
        costs = partial(sequence_costs, linear=linear, quadratic=quadratic)
    return WorkerHandle(
        group,
        plan.layouts,
        engines or ColocatedEngines(group, plan.rollout),
        seed=plan.config.megatron_training.seed,
        costs=costs,
        shares_prompts=shares,
        engine_rows=plan.config.generate_config.max_num_seqs,
        teacher=served_teacher(plan),
    )
