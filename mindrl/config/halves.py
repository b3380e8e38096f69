"""Runs of only one half of each step, and the numbering that two such jobs share."""

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


def version_of(config: RunConfig, step: int) -> int:
    """Return the step after which the weights were published that sample a step, with a spool.

    They are the newest weights that exist if the train job is `rl_config.max_staleness` steps late:
    the result does not depend on which job is faster.
    """
    every = config.spool_config.publish_every
    newest = step - 1 - (config.rl_config.max_staleness - (every - 1))
    return max(0, newest // every * every)


def records_per_step(config: RunConfig) -> int:
    """Return the number of spool records per step."""
    prompts = config.megatron_training.global_batch_size
    return prompts // (config.spool_config.prompts_per_record or prompts)
