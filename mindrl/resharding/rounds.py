"""The rounds that messages travel in: each rank's share of a round is bounded both ways."""

import numpy as np
from numpy.typing import NDArray

_MOST_SIZES = 32
"""Sizes that are told apart; others count as the next larger one of these."""


def assign_rounds(
    senders: NDArray[np.int64],
    receivers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    per_round: int,
) -> NDArray[np.int64]:
    """Give each route the first round with room for it on both ranks.

    A local copy takes part in no message; it goes with the round of the last message before it to
    the same rank, so that tensors are completed one after the other.

    Args:
        senders: Rank that each route comes from.
        receivers: Rank that each route goes to.
        sizes: Bytes of each route, none above `per_round`.
        per_round: Bound on what a rank sends in a round, and on what it receives.
    """
    world = int(max(senders.max(initial=-1), receivers.max(initial=-1))) + 1
    told_apart = _told_apart(sizes[senders != receivers])
    kinds = np.searchsorted(told_apart, sizes)
    outgoing = [_Rounds(per_round, told_apart) for _ in range(world)]
    incoming = [_Rounds(per_round, told_apart) for _ in range(world)]
    reached = [0] * world
    rounds = []
    routes = (senders.tolist(), receivers.tolist(), sizes.tolist(), kinds.tolist())
    for sender, receiver, size, kind in zip(*routes, strict=True):
        at = reached[receiver]
        if sender != receiver:
            out, into = outgoing[sender], incoming[receiver]
            at = _lowest_zero(out.full[kind] | into.full[kind])
            out.add(at, size)
            into.add(at, size)
            reached[receiver] = max(reached[receiver], at)
        rounds.append(at)
    return np.array(rounds, dtype=np.int64)


def _told_apart(sizes: NDArray[np.int64]) -> list[int]:
    """Return the sizes, or some of them and the largest."""
    found: list[int] = np.unique(sizes).tolist()
    step = -(-len(found) // _MOST_SIZES)
    return found if step <= 1 else sorted({*found[::step], found[-1]})


def _lowest_zero(bits: int) -> int:
    """Return the place of the lowest bit that is not set."""
    return (bits ^ (bits + 1)).bit_length() - 1


class _Rounds:
    """How full the rounds of one rank are, one way."""

    __slots__ = ("fitting", "full", "per_round", "room", "told_apart")

    def __init__(self, per_round: int, told_apart: list[int]) -> None:
        self.per_round = per_round
        self.told_apart = told_apart
        self.room: list[int] = []
        self.fitting: list[int] = []
        """How many of the sizes still have room in each round: the smallest ones."""
        self.full = [0] * len(told_apart)
        """For each size, a bit for every round that has no room for it."""

    def add(self, at: int, size: int) -> None:
        """Put something into a round."""
        room = self.room
        if at >= len(room):
            new = at + 1 - len(room)
            room += [self.per_round] * new
            self.fitting += [len(self.told_apart)] * new
        left = room[at] = room[at] - size
        before = fitting = self.fitting[at]
        while fitting and self.told_apart[fitting - 1] > left:
            fitting -= 1
            self.full[fitting] |= 1 << at
        if fitting < before:
            self.fitting[at] = fitting
