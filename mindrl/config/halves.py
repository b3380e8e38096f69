"""A run that does one half of each step alone."""

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
    alone = replace(rl, actor_resource=there, use_integrated_worker=True, rollout_resource=none)
    return replace(config, rl_config=alone)
