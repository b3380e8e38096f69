"""Runs of only one half of each step, and the schedule of a train job and its rollout jobs."""

from dataclasses import replace

from mindrl.config.run import RunConfig


def on_its_own_devices(config: RunConfig) -> RunConfig:
    """Return the configuration of one half of each step on only the devices of that half.

    Any other configuration is returned unchanged.
    """
    if not config.is_apart or (config.learns and config.rolls_out):
        return config
    rl = config.rl_config
    devices = config.rollout_devices if config.rolls_out else config.world_size
    there = replace(rl.actor_resource, num_npus=devices)
    none = type(rl.rollout_resource)()
    alone = replace(
        rl,
        actor_resource=there,
        use_integrated_worker=True,
        rollout_resource=none,
        step_order="in_turns",
        # Stored rollouts may come from another step order, and keep that order's correction.
        rollout_correction=config.rollout_correction or rl.rollout_correction,
    )
    return replace(config, rl_config=alone)


def published_version(config: RunConfig, step: int) -> int:
    """Return the version of the newest weights in a spool when a step starts.

    It is the step after which the train job published them.
    """
    every = config.spool_config.publish_every
    return (step - 1) // every * every


def steps_ahead(config: RunConfig) -> int:
    """Return how many steps before it trains on it the train job of a spool requests a response.

    Weights may be `publish_every` - 1 steps old when they are requested, so that no response is
    older than `rl_config.max_staleness` when it is trained on.
    """
    return config.rl_config.max_staleness - (config.spool_config.publish_every - 1)


def prompts_per_record(config: RunConfig) -> int:
    """Return the maximum number of prompts of a request, and of its record."""
    return config.spool_config.prompts_per_record or config.megatron_training.global_batch_size
