"""Memory regions that take turns on a device, the phases that need them, and their schedule.

A pure function returns which regions leave, and which enter, between two phases. The run executes
these moves and a plan adds up their bytes, so both follow the same order. Unused regions leave
before others enter; rollout weights enter first and the KV cache last.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from mindrl.config.layout_keys import Role

Side = Literal["both", "training", "rollout"]
"""Part of a run on some devices: one side if the rollout has separate devices."""


class Region(Enum):
    """Memory on a device, by owner and purpose."""

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
    TEACHER_WEIGHTS = "teacher_weights"
    STAGING = "staging"
    """Messages in flight while the weights are resharded."""


ROLLOUT_REGIONS = frozenset({Region.ROLLOUT_WEIGHTS, Region.KV_CACHE})
"""Rebuilt for each rollout and never copied to the host: their contents come from elsewhere."""

DEAD_AFTER_USE = ROLLOUT_REGIONS | {Region.ACTOR_GRADIENTS, Region.CRITIC_GRADIENTS, Region.STAGING}
"""Released without a copy: their contents are not read again."""

ROLE_REGIONS: Mapping[Role, tuple[Region, ...]] = {
    "actor": (Region.ACTOR_WEIGHTS, Region.ACTOR_GRADIENTS, Region.ACTOR_OPTIMIZER),
    "critic": (Region.CRITIC_WEIGHTS, Region.CRITIC_GRADIENTS, Region.CRITIC_OPTIMIZER),
    "ref": (Region.REFERENCE_WEIGHTS,),
    "reward": (Region.REWARD_WEIGHTS,),
    "teacher": (Region.TEACHER_WEIGHTS,),
}
"""Weights and, for a trained role, gradients and optimizer, in the order of `StatePart`."""


class Phase(Enum):
    """Use of the device, in the order of a step."""

    ROLLOUT = "rollout"
    """Generation by the engine."""
    SEND = "send_weights"
    """Transfer of the actor's weights to separate rollout devices."""
    REWARD = "reward"
    """Scores of a neural reward model."""
    REFERENCE = "reference"
    """Log-probs of the reference."""
    TEACHER = "teacher"
    """Log-probs of the teacher."""
    FORWARD = "forward"
    """Log-probs of the actor, and exports of its weights."""
    CRITIC_FORWARD = "critic_forward"
    """Values."""
    CRITIC_TRAIN = "critic_train"
    """Updates of the critic."""
    TRAIN = "train"
    """Updates of the actor."""


RECEIVING = "receive weights"
"""Label of the weight transfer on a device with the rollout only."""
SENDING = "messages in flight"
"""Label of the moment of `Phase.SEND` with the most memory."""

PHASE_ROLES: Mapping[Phase, Role] = {
    Phase.REWARD: "reward",
    Phase.REFERENCE: "ref",
    Phase.TEACHER: "teacher",
    Phase.FORWARD: "actor",
    Phase.CRITIC_FORWARD: "critic",
    Phase.CRITIC_TRAIN: "critic",
    Phase.TRAIN: "actor",
}
"""Role of the model that runs in each phase of the training side."""

UPDATES = frozenset({Phase.TRAIN, Phase.CRITIC_TRAIN})
"""Phases that change their regions; all others only read them."""


NEEDS: Mapping[Phase, tuple[Region, ...]] = {
    Phase.ROLLOUT: (Region.ROLLOUT_WEIGHTS, Region.KV_CACHE),
    Phase.SEND: (Region.ACTOR_WEIGHTS,),
    **{
        phase: ROLE_REGIONS[role] if phase in UPDATES else ROLE_REGIONS[role][:1]
        for phase, role in PHASE_ROLES.items()
    },
}
"""Regions that a phase needs on the device, in the order in which they enter."""

CHANGED_BY = {phase: frozenset(NEEDS[phase]) - DEAD_AFTER_USE for phase in UPDATES}
"""Regions that an update changes and later phases read."""


class MoveKind(Enum):
    """What a move does; the values appear in labels and metrics."""

    OFFLOAD = "release"
    """Leaves the device; copied to the host only if changed since the last copy."""
    ONLOAD = "bring"
    """Enters the device, from the host or empty."""
    RESHARD = "reshard"
    """Fills the rollout weights from the actor's; both are on the device, and the messages."""


@dataclass(frozen=True)
class Move:
    """One action between two phases."""

    kind: MoveKind
    region: Region


def step_phases(
    roles: Collection[Role], *, reads_actor: bool = True, side: Side = "both"
) -> tuple[Phase, ...]:
    """Return the phases of a training step, in order; those of one role are consecutive.

    `reads_actor` is False if the update itself computes the old log-probs: no forward pass before
    it.
    """
    if side == "rollout":
        return (Phase.ROLLOUT,)
    first = Phase.ROLLOUT if side == "both" else Phase.SEND
    of_roles = (phase for phase in Phase if PHASE_ROLES.get(phase) in roles)
    return (first, *(each for each in of_roles if reads_actor or each is not Phase.FORWARD))


def moves(resident: Collection[Region], phase: Phase, movable: Collection[Region]) -> list[Move]:
    """Return the moves from the resident regions into a phase; empty if it is ready.

    Only `movable` regions, and those of the rollout, may leave while unused.
    """
    way = _into(resident, NEEDS[phase], movable)
    if phase is not Phase.ROLLOUT or not way:
        return way
    weights = Region.ACTOR_WEIGHTS
    return [
        *_into(resident, (weights, Region.ROLLOUT_WEIGHTS), movable),
        Move(MoveKind.RESHARD, Region.ROLLOUT_WEIGHTS),
        *([Move(MoveKind.OFFLOAD, weights)] if weights in movable else []),
        Move(MoveKind.ONLOAD, Region.KV_CACHE),
    ]


def _into(
    resident: Collection[Region], needed: tuple[Region, ...], movable: Collection[Region]
) -> list[Move]:
    """Return moves that release unneeded regions, the rollout's first and once, and load others."""
    gone = set(resident) & (ROLLOUT_REGIONS | set(movable)) - set(needed)
    # One move releases both regions of the engine: see `leaving`.
    rollout = [Region.KV_CACHE] if ROLLOUT_REGIONS & gone else []
    released = rollout + [region for region in Region if region in gone - ROLLOUT_REGIONS]
    brought = [region for region in needed if region not in resident]
    return [
        *(Move(MoveKind.OFFLOAD, region) for region in released),
        *(Move(MoveKind.ONLOAD, region) for region in brought),
    ]


def after(resident: Collection[Region], way: Iterable[Move]) -> frozenset[Region]:
    """Return the regions on the device after some moves."""
    there = set(resident)
    for move in way:
        if move.kind is MoveKind.ONLOAD:
            there.add(move.region)
        elif move.kind is MoveKind.OFFLOAD:
            there -= leaving(move)
    return frozenset(there)


def leaving(move: Move) -> frozenset[Region]:
    """Return the regions that leave together: an engine that sleeps frees both of its own."""
    return ROLLOUT_REGIONS if move.region in ROLLOUT_REGIONS else frozenset({move.region})


@dataclass(frozen=True)
class Instant:
    """Regions on the device at one moment of the schedule."""

    label: str
    phase: Phase
    """Phase that it belongs to; moves belong to the phase that they prepare."""
    resident: frozenset[Region]
    move: Move | None = None
    """Move just made; None for the phase itself."""


def timeline(
    phases: Iterable[Phase], movable: Collection[Region], resident: Collection[Region]
) -> list[Instant]:
    """Return the moments of `moves` through the phases: one for each move and each phase."""
    there, instants = frozenset(resident), []
    for phase in phases:
        for move in moves(there, phase, movable):
            there = after(there, [move])
            during = there | {Region.STAGING} if move.kind is MoveKind.RESHARD else there
            instants.append(Instant(label_of(move), phase, during, move))
        instants.append(Instant(phase.value, phase, there))
        if phase is Phase.SEND:
            instants.append(Instant(SENDING, phase, there | {Region.STAGING}))
    return instants


def rollout_timeline() -> list[Instant]:
    """Return the moments of a device with the rollout only, which never leaves it."""
    receiving = Instant(RECEIVING, Phase.ROLLOUT, ROLLOUT_REGIONS | {Region.STAGING})
    return [receiving, Instant(Phase.ROLLOUT.value, Phase.ROLLOUT, ROLLOUT_REGIONS)]


def label_of(move: Move) -> str:
    """Return a readable label of a move."""
    if move.kind is MoveKind.RESHARD:
        return str(move.kind.value)
    if move.kind is MoveKind.OFFLOAD and move.region in ROLLOUT_REGIONS:
        return "release rollout"
    return f"{move.kind.value} {move.region.value}"


def copied_regions(instants: Iterable[Instant]) -> tuple[list[Region], list[Region]]:
    """Return the minimum copies of a timeline: to the host, and to the device, in order.

    A region is copied to the device each time it returns, unless it returns empty, and to the host
    each time it leaves after an update has changed it. At first it equals the host's copy.
    """
    changed, out, back = set[Region](), [], []
    for at in instants:
        if at.move is None:
            changed |= CHANGED_BY.get(at.phase, frozenset())
        elif at.move.region in DEAD_AFTER_USE:
            continue
        elif at.move.kind is MoveKind.ONLOAD:
            back.append(at.move.region)
        elif at.move.region in changed:
            changed.remove(at.move.region)
            out.append(at.move.region)
    return out, back
