"""The large things that take turns on a device, and the phases that need them. Pure Python."""

from collections.abc import Mapping
from enum import Enum

from mindrl.config.layout_keys import Role


class Region(Enum):
    """What a device holds, by its owner and its purpose."""

    ACTOR_WEIGHTS = "actor_weights"
    ACTOR_GRADIENTS = "actor_gradients"
    ACTOR_OPTIMIZER = "actor_optimizer"
    ROLLOUT_WEIGHTS = "rollout_weights"
    KV_CACHE = "kv_cache"
    REFERENCE_WEIGHTS = "reference_weights"
    CRITIC_WEIGHTS = "critic_weights"
    CRITIC_GRADIENTS = "critic_gradients"
    CRITIC_OPTIMIZER = "critic_optimizer"
    REWARD_WEIGHTS = "reward_weights"
    STAGING = "staging"
    """Messages in flight while the weights are resharded."""


ROLLOUT_REGIONS = frozenset({Region.ROLLOUT_WEIGHTS, Region.KV_CACHE})
"""Made anew for each rollout, and never kept: their contents come from elsewhere."""

DEAD_AFTER_USE = ROLLOUT_REGIONS | {Region.ACTOR_GRADIENTS, Region.CRITIC_GRADIENTS, Region.STAGING}
"""Released without a copy: nothing reads their contents again."""

ROLE_REGIONS: Mapping[Role, tuple[Region, ...]] = {
    "actor": (Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER),
    "critic": (Region.CRITIC_WEIGHTS, Region.CRITIC_GRADIENTS, Region.CRITIC_OPTIMIZER),
    "ref": (Region.REFERENCE_WEIGHTS,),
    "reward": (Region.REWARD_WEIGHTS,),
}
"""Weights, and, of a role that learns, gradients and optimizer: as `StatePart` names them."""


class Phase(Enum):
    """What the device is used for, in the order of a step."""

    ROLLOUT = "rollout"
    """Generation by the engine."""
    REWARD = "reward"
    """Scores of a neural reward model."""
    REFERENCE = "reference"
    """Log-probs of the reference."""
    FORWARD = "forward"
    """Log-probs of the actor, and exports of its weights."""
    CRITIC_FORWARD = "critic_forward"
    """Values."""
    CRITIC_TRAIN = "critic_train"
    """Updates of the critic."""
    TRAIN = "train"
    """Updates of the actor."""


PHASE_ROLES: Mapping[Phase, Role] = {
    Phase.REWARD: "reward",
    Phase.REFERENCE: "ref",
    Phase.FORWARD: "actor",
    Phase.CRITIC_FORWARD: "critic",
    Phase.CRITIC_TRAIN: "critic",
    Phase.TRAIN: "actor",
}
"""Whose model a phase of the training side passes sequences through."""

UPDATES = frozenset({Phase.TRAIN, Phase.CRITIC_TRAIN})
"""Every other phase leaves what it reads as it was."""


def _needs(phase: Phase) -> tuple[Region, ...]:
    if phase is Phase.ROLLOUT:
        return Region.ROLLOUT_WEIGHTS, Region.KV_CACHE
    regions = ROLE_REGIONS[PHASE_ROLES[phase]]
    return regions if phase in UPDATES else regions[:1]


NEEDS: Mapping[Phase, tuple[Region, ...]] = {phase: _needs(phase) for phase in Phase}
"""What a phase needs on the device, in the order in which it comes."""

CHANGED_BY = {phase: frozenset(NEEDS[phase]) - DEAD_AFTER_USE for phase in UPDATES}
"""What an update changes, and the next phases read."""
