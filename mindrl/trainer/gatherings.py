"""Select the source of step data from the configuration."""

from collections.abc import Callable

from mindrl.config.run import RunConfig
from mindrl.trainer.ahead_groups import AheadGroups
from mindrl.trainer.gathering import Answering, Gathering, StepGroups
from mindrl.trainer.partial_groups import PartialGroups
from mindrl.trainer.signal_groups import SignalGroups
from mindrl.trainer.stored_groups import StoredGroups, stored_rollouts


def gathering_of(config: RunConfig, answering: Answering, warn: Callable[[str], None]) -> Gathering:
    """Return the source of step data for a run."""
    rl = config.rl_config
    if rl.debug == "train_only":
        return StoredGroups(stored_rollouts(config))
    if rl.filter_groups_enable:
        return SignalGroups(config, answering, warn)
    if rl.partial_rollout:
        return PartialGroups(config, answering)
    if rl.step_order != "in_turns":
        return AheadGroups(config, answering)
    return StepGroups(answering=answering, blocking=rl.blocking)
