"""Rules for runs of only one half of each step. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig

_FOLDER = "rl_config.debug_rollouts"


def debug_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what one half of a step lacks, or cannot use."""
    rl = config.rl_config
    if rl.debug == "train_only":
        yield from _train_only(config)
    elif rl.debug_rollouts is not None:
        need = f"has an effect only with rl_config.debug=train_only, found {rl.debug}"
        yield broken(_FOLDER, rl.debug_rollouts, need, None)
    if rl.debug == "rollout_only":
        yield from _rollout_only(config)


def _train_only(config: RunConfig) -> Iterator[Finding]:
    rl = config.rl_config
    if rl.debug_rollouts is None:
        text = (
            f"{_FOLDER} is missing: rl_config.debug=train_only trains on the stored rollouts "
            "of a run"
        )
        yield Finding(text, _FOLDER)
    if rl.has_baseline:
        need = (
            ": rl_config.debug=train_only has no engine, and stored rollouts have no greedy answers"
        )
        yield broken("rl_config.adv_estimator", rl.adv_estimator, need)


def _rollout_only(config: RunConfig) -> Iterator[Finding]:
    training, steps = config.megatron_training, config.megatron_training.train_iters
    if training.keep_rollouts < steps:
        need = f"keeps fewer than the {steps} steps of rl_config.debug=rollout_only"
        yield broken("megatron_training.keep_rollouts", training.keep_rollouts, need, steps)
    if training.save_interval:
        need = "must be 0 with rl_config.debug=rollout_only, which trains no model"
        yield broken("megatron_training.save_interval", training.save_interval, need, 0)
    if config.reward_config is not None:
        need = ": rl_config.debug=rollout_only builds only the engine; remove this section"
        yield broken("reward_config.load", config.reward_config.load, need)
