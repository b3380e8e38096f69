"""A run that does one half of each step alone, and what two of them go by."""

from dataclasses import replace

from mindrl.config.run import RunConfig


def on_its_own_devices(config: RunConfig) -> RunConfig:
    """Return the configuration of one half of each step alone, on the devices that are that half's.

    Any other is returned as it is.
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
        # What is kept may be of another order, and is corrected as there.
        rollout_correction=config.rollout_correction or rl.rollout_correction,
    )
    return replace(config, rl_config=alone)


def version_of(config: RunConfig, step: int) -> int:
    """Return behind which step the weights are that draw a step, where a spool joins two jobs.

    The newest that are published when the train job is `rl_config.max_staleness` steps behind:
    whoever is faster, they are the same.
    """
    every = config.spool_config.publish_every
    newest = step - 1 - (config.rl_config.max_staleness - (every - 1))
    return max(0, newest // every * every)


def records_per_step(config: RunConfig) -> int:
    """Return how many records of a spool are a step."""
    prompts = config.megatron_training.global_batch_size
    return prompts // (config.spool_config.prompts_per_record or prompts)
