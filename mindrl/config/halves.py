"""Runs of only one half of each step, and the schedule of a train job and its rollout jobs."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from mindrl.config.generate import SpeculativeConfig
from mindrl.config.layout_keys import RESOURCES
from mindrl.config.resources import MOST_DEVICES
from mindrl.config.run import RunConfig

NO_ENGINE: Mapping[str, Any] = MappingProxyType(
    {
        "backend": "",
        "servers": (),
        "servers_file": None,
        "router": None,
        "infer_tensor_parallel_size": 1,
        "infer_pipeline_parallel_size": 1,
        "infer_expert_parallel_size": 1,
        "quantization": None,
        "speculative_config": SpeculativeConfig(),
    }
)
"""Values of `generate_config` for a run in which nothing generates."""


def on_its_own_devices(config: RunConfig) -> RunConfig:
    """Return the configuration of one half of each step on only the devices of that half.

    The half that trains has no engine. The half that generates has one role on all devices of the
    rollout. Any other configuration is returned unchanged; a rollout without a number of devices,
    or with too many, keeps its keys, and `placement_findings` reports it.
    """
    if config.learns and config.rolls_out:
        return config
    rl = config.rl_config
    if config.rolls_out:
        # A rollout that shares the devices also uses those of roles that only training has.
        shared = max(config.role_devices(role).stop for role in RESOURCES)
        devices = config.rollout_devices if config.is_apart else shared
        if not 0 < devices <= MOST_DEVICES:
            return config
        roles = replace(rl.actor_resource, num_npus=devices, first_npu=0)
        config = replace(config, rl_config=replace(rl, actor_resource=roles))
    elif not config.reads_answers:
        config = replace(config, generate_config=replace(config.generate_config, **NO_ENGINE))
    if not config.is_apart:
        return config
    alone = replace(
        config.rl_config,
        use_integrated_worker=True,
        rollout_resource=type(rl.rollout_resource)(),
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
