"""The large things that take turns on a device, and the phases that need them. Pure Python."""

from collections.abc import Mapping
from enum import Enum


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


class Phase(Enum):
    """What the device is used for."""

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


NEEDS: Mapping[Phase, tuple[Region, ...]] = {
    Phase.ROLLOUT: (Region.ROLLOUT_WEIGHTS, Region.KV_CACHE),
    Phase.REWARD: (Region.REWARD_WEIGHTS,),
    Phase.REFERENCE: (Region.REFERENCE_WEIGHTS,),
    Phase.FORWARD: (Region.ACTOR_WEIGHTS,),
    Phase.CRITIC_FORWARD: (Region.CRITIC_WEIGHTS,),
    Phase.CRITIC_TRAIN: (
        Region.CRITIC_WEIGHTS,
        Region.CRITIC_GRADIENTS,
        Region.CRITIC_OPTIMIZER,
    ),
    Phase.TRAIN: (Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER),
}
"""What a phase needs on the device, in the order in which it comes."""

CHANGED_BY: Mapping[Phase, frozenset[Region]] = {
    Phase.TRAIN: frozenset({Region.ACTOR_WEIGHTS, Region.ACTOR_OPTIMIZER}),
    Phase.CRITIC_TRAIN: frozenset({Region.CRITIC_WEIGHTS, Region.CRITIC_OPTIMIZER}),
}
"""What an update changes; every other phase leaves what it reads as it was."""
