"""The one memory schedule of a device: what leaves it, and what comes, between two phases.

A pure function says it. The run carries its moves out, and a plan adds up their bytes on any
machine, so that both go the same way. What is not needed leaves before anything comes; rollout
weights come first and the KV cache last.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from mindrl.memory.regions import (
    CHANGED_BY,
    DEAD_AFTER_USE,
    NEEDS,
    ROLLOUT_REGIONS,
    Phase,
    Region,
)


class MoveKind(Enum):
    """What is done with a region; the values are what labels and metrics say."""

    OFFLOAD = "release"
    """It leaves the device, copied to the host only if it has changed since it was last there."""
    ONLOAD = "bring"
    """It comes: from the host, or empty."""
    RESHARD = "reshard"
    """The actor's weights fill the rollout weights; both are there, and the messages."""


@dataclass(frozen=True)
class Move:
    """One step between two phases."""

    kind: MoveKind
    region: Region


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which roles a run has besides the actor and its engine."""

    reference: bool = False
    critic: bool = False
    reward: bool = False


def step_phases(roles: Roles) -> tuple[Phase, ...]:
    """Return the phases of a training step, in order; those of one role lie side by side."""
    phases = (
        (Phase.ROLLOUT, True),
        (Phase.REWARD, roles.reward),
        (Phase.REFERENCE, roles.reference),
        (Phase.FORWARD, True),
        (Phase.CRITIC_FORWARD, roles.critic),
        (Phase.CRITIC_TRAIN, roles.critic),
        (Phase.TRAIN, True),
    )
    return tuple(phase for phase, there in phases if there)


def moves(resident: Collection[Region], phase: Phase, movable: Collection[Region]) -> list[Move]:
    """Return the way into a phase, in order; empty where the device is ready for it.

    Args:
        resident: What is on the device.
        phase: Where to go.
        movable: Regions that may leave the device while they are not needed. What belongs to
            the rollout always may.
    """
    needed = NEEDS[phase]
    if set(needed) <= set(resident) and not set(resident) & (_may_leave(movable) - set(needed)):
        return []
    if phase is Phase.ROLLOUT:
        return list(_into_rollout(resident, movable))
    return list(_into(resident, needed, movable))


def after(resident: Collection[Region], way: Iterable[Move]) -> frozenset[Region]:
    """Return what is on the device behind some moves."""
    there = set(resident)
    for move in way:
        if move.kind is MoveKind.ONLOAD:
            there.add(move.region)
        elif move.kind is MoveKind.OFFLOAD:
            there -= leaving(move)
    return frozenset(there)


def leaving(move: Move) -> frozenset[Region]:
    """Return what leaves with a region: an engine that goes to sleep gives both of its own."""
    return ROLLOUT_REGIONS if move.region in ROLLOUT_REGIONS else frozenset({move.region})


@dataclass(frozen=True)
class Instant:
    """What lies on the device at one moment of the schedule."""

    label: str
    phase: Phase
    """Where it belongs to, the way into that phase included."""
    resident: frozenset[Region]


def timeline(
    phases: Iterable[Phase], movable: Collection[Region], resident: Collection[Region]
) -> list[Instant]:
    """Follow the schedule through phases; one moment for each move and each phase.

    Args:
        phases: In order.
        movable: As for `moves`.
        resident: What is on the device before the first phase.
    """
    there, instants = frozenset(resident), []
    for phase in phases:
        for move in moves(there, phase, movable):
            there = after(there, [move])
            during = there | {Region.STAGING} if move.kind is MoveKind.RESHARD else there
            instants.append(Instant(label_of(move), phase, during))
        instants.append(Instant(phase.value, phase, there))
    return instants


def label_of(move: Move) -> str:
    """Name a move for a person."""
    if move.kind is MoveKind.RESHARD:
        return str(move.kind.value)
    if move.kind is MoveKind.OFFLOAD and move.region in ROLLOUT_REGIONS:
        return "release rollout"
    return f"{move.kind.value} {move.region.value}"


def copied_regions(
    phases: Iterable[Phase], movable: Collection[Region], resident: Collection[Region]
) -> tuple[list[Region], list[Region]]:
    """Return what the phases copy at the least: to the host, and to the device, in order.

    A region is copied to the device each time that it comes back, unless it comes empty, and to
    the host each time that it leaves after an update has changed it.

    Args:
        phases: In order.
        movable: As for `moves`.
        resident: What is on the device before the first phase; equal to what the host has of it.
    """
    there, changed = frozenset(resident), set[Region]()
    out, back = [], []
    for phase in phases:
        way = moves(there, phase, movable)
        for move in way:
            if move.region in DEAD_AFTER_USE:
                continue
            if move.kind is MoveKind.ONLOAD:
                back.append(move.region)
            elif move.kind is MoveKind.OFFLOAD and move.region in changed:
                changed.remove(move.region)
                out.append(move.region)
        there = after(there, way)
        changed |= CHANGED_BY.get(phase, frozenset())
    return out, back


def _may_leave(movable: Collection[Region]) -> frozenset[Region]:
    return ROLLOUT_REGIONS | frozenset(movable)


def _into(
    resident: Collection[Region], needed: tuple[Region, ...], movable: Collection[Region]
) -> Iterator[Move]:
    gone = set(resident) & _may_leave(movable) - set(needed)
    for region in _in_order(gone):
        yield Move(MoveKind.OFFLOAD, region)
    for region in needed:
        if region not in resident:
            yield Move(MoveKind.ONLOAD, region)


def _into_rollout(resident: Collection[Region], movable: Collection[Region]) -> Iterator[Move]:
    weights = Region.ACTOR_WEIGHTS
    yield from _into(resident, (weights, Region.ROLLOUT_WEIGHTS), movable)
    yield Move(MoveKind.RESHARD, Region.ROLLOUT_WEIGHTS)
    if weights in movable:
        yield Move(MoveKind.OFFLOAD, weights)
    yield Move(MoveKind.ONLOAD, Region.KV_CACHE)


def _in_order(regions: Collection[Region]) -> list[Region]:
    """Return what leaves, the rollout first, and once: the KV cache stands for all of it."""
    rollout = [Region.KV_CACHE] if ROLLOUT_REGIONS & set(regions) else []
    return rollout + [region for region in Region if region in set(regions) - ROLLOUT_REGIONS]
