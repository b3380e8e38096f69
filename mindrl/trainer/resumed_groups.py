"""Check whether a checkpoint's open groups fit the step order of the resumed run."""

from collections.abc import Mapping
from typing import Any

from mindrl.config.run import RunConfig
from mindrl.errors import CheckpointError


def gathering_state(config: RunConfig, step: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the data source after a step, from a checkpoint's state.

    Raises:
        CheckpointError: The run could not train on some open groups in time, or would train on a
            prompt twice.
    """
    found: Mapping[str, Any] = state.get("gathering", {})
    rl, per_step = config.rl_config, config.megatron_training.global_batch_size
    groups, place = found.get("groups", ()), found.get("place", step * per_step)
    is_filtered = "without_signal" in found
    oldest = _most_staleness(config)
    if is_filtered == rl.filter_groups_enable and (oldest is None) == ("groups" not in found):
        late = _late(groups, step, per_step, oldest or 0)
        if not late:
            return found
        raise CheckpointError(
            f"behind step {step} {len(groups)} groups of responses are under way, {late} of which "
            f"would be trained on more than {oldest} step(s) behind the one that began them "
            "(rl_config.max_staleness; 1 one step off): go on with what the run was begun with"
        )
    if place == step * per_step and not groups:
        return {}
    raise CheckpointError(
        f"behind step {step} the run has begun {place} prompts, {len(groups)} of which are under "
        f"way; with rl_config.step_order={rl.step_order}, rl_config.partial_rollout="
        f"{rl.partial_rollout} and rl_config.filter_groups_enable={rl.filter_groups_enable} the "
        f"next step begins behind {step * per_step}: go on with what the run was begun with"
    )


def _most_staleness(config: RunConfig) -> int | None:
    """Return the maximum age of a group; None if no group stays open after a step."""
    rl = config.rl_config
    if rl.filter_groups_enable:
        return None
    if rl.partial_rollout or rl.step_order == "asynchronous":
        return rl.max_staleness
    return None if rl.step_order == "in_turns" else 1


def _late(groups: Any, step: int, per_step: int, oldest: int) -> int:
    """Return the number of groups that would be too old if steps train on the oldest first."""
    return sum(
        step + 1 + place // per_step - group["born"] > oldest for place, group in enumerate(groups)
    )
