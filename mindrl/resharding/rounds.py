"""The rounds that messages travel in: each rank's share of a round is bounded both ways."""

import numpy as np
from numpy.typing import NDArray

_NEARLY_FULL = 1 / 64
"""A round with less room than this share is not looked at again."""


def assign_rounds(
    senders: NDArray[np.int64],
    receivers: NDArray[np.int64],
    sizes: NDArray[np.int64],
    per_round: int,
) -> NDArray[np.int64]:
    """Give each route the first round with room for it on both ranks.

    A local copy takes part in no message; it goes with the round that its rank has reached,
    so that tensors are completed one after the other.

    Args:
        senders: Rank that each route comes from.
        receivers: Rank that each route goes to.
        sizes: Bytes of each route, none above `per_round`.
        per_round: Bound on what a rank sends in a round, and on what it receives.
    """
    world = int(max(senders.max(initial=-1), receivers.max(initial=-1))) + 1
    outgoing = [_Rounds(per_round) for _ in range(world)]
    incoming = [_Rounds(per_round) for _ in range(world)]
    reached = [0] * world
    rounds = []
    for sender, receiver, size in zip(
        senders.tolist(), receivers.tolist(), sizes.tolist(), strict=True
    ):
        if sender == receiver:
            rounds.append(reached[receiver])
            continue
        out, into = outgoing[sender], incoming[receiver]
        at = max(out.first_open, into.first_open)
        while not (out.has_room(at, size) and into.has_room(at, size)):
            at += 1
        out.add(at, size)
        into.add(at, size)
        reached[receiver] = max(reached[receiver], into.first_open)
        rounds.append(at)
    # A rank that reached beyond the last message copies what is left in the last round.
    last = max(
        (at for at, moved in zip(rounds, senders != receivers, strict=True) if moved), default=0
    )
    return np.minimum(np.array(rounds, dtype=np.int64), last)


class _Rounds:
    """How full the rounds of one rank are, one way."""

    def __init__(self, per_round: int) -> None:
        self.per_round = per_round
        self.filled: list[int] = []
        self.first_open = 0

    def has_room(self, at: int, size: int) -> bool:
        return at >= len(self.filled) or self.filled[at] + size <= self.per_round

    def add(self, at: int, size: int) -> None:
        self.filled += [0] * (at + 1 - len(self.filled))
        self.filled[at] += size
        nearly = self.per_round * (1 - _NEARLY_FULL)
        while self.first_open < len(self.filled) and self.filled[self.first_open] >= nearly:
            self.first_open += 1
