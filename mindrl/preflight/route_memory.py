"""Predicted memory of a mixture's replayed routes, on the host and on the devices. No torch."""

import numpy as np

from mindrl.layouts.layout import TrainLayout
from mindrl.memory.plan import RankBytes
from mindrl.models.expert_routes import route_bytes_per_token
from mindrl.preflight.run_shardings import RunPlan


def replayed_bytes(plan: RunPlan) -> int:
    """Return the bytes of the routes that one update has on a device; 0 without replay."""
    layout = plan.layouts["actor"]
    return _of_update(plan) // layout.cp


def kept_route_bytes(plan: RunPlan) -> RankBytes | None:
    """Return the bytes of the routes that each rank of a run may keep on its host at a time.

    None without replay. With R2 each rank has the routes of its replica's sequences of a step, in
    its stage's layers. With R3 the first rank of an engine has the routes of the engine's
    sequences, in all layers; engines on their own devices send them to the training ranks in turn.
    Sequences may be of as many steps as the run may be stale. An update copies its part. All
    sequences are counted with the longest length.
    """
    config, kind = plan.config, plan.config.actor_config.router_replay
    if kind == "none":
        return None
    model, layout = plan.models["actor"], plan.layouts["actor"]
    found: RankBytes = np.zeros(config.world_size, dtype=np.int64)
    devices = [*config.role_devices("actor")]
    found[devices] += _of_update(plan)
    tokens = _longest(plan) * config.sequences_per_step
    if kind == "R2":
        found[devices] += tokens // layout.dp * route_bytes_per_token(model, layout)
        return found
    keepers = [*plan.rollout.leaders] if config.devices == config.world_size else devices
    nbytes = tokens * (1 + config.max_staleness) * route_bytes_per_token(model, TrainLayout())
    found[keepers] += -(-nbytes // len(keepers))
    return found


def _of_update(plan: RunPlan) -> int:
    """Return the bytes of the routes of a replica's sequences of one update, on a stage."""
    config, layout = plan.config, plan.layouts["actor"]
    if config.actor_config.router_replay == "none":
        return 0
    tokens = _longest(plan) * config.sequences_per_update // layout.dp
    return tokens * route_bytes_per_token(plan.models["actor"], layout)


def _longest(plan: RunPlan) -> int:
    """Return the tokens of the longest sequence."""
    config = plan.config
    most = config.rl_config.max_prompt_length + config.generate_config.sampling_config.max_tokens
    return min(config.megatron_training.seq_length, most)
