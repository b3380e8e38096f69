"""Assign the bundles between ranks to rounds, with bounded bytes for each rank in each direction.

The assignment is greedy in the order of the bundles. Bundles that share neither sender nor receiver
do not affect each other, so they are placed together as arrays.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mindrl.resharding.slices import SMALL_PART, Indices, Integers

_MOST_SIZES = 8
"""Number of distinct sizes; others are rounded up to the next of these."""
_AT_ONCE = 1 << 14
"""Number of deliveries with ranks as Python objects at the same time."""
_WORD = 64
"""Rounds in an integer of `_Way.full`."""
_ALL = np.uint64(2**_WORD - 1)


class Deliveries(NamedTuple):
    """Bundles from a rank to a rank, which may be the same; arrays of equal length."""

    source: Indices
    target: Indices
    nbytes: Integers


def assign_rounds(messages: Deliveries, per_round: int) -> Indices:
    """Return for each message the first round with room for it on both ranks: wide ones first.

    A local copy is not a message. It gets the round of the last message before it to the same rank,
    so that tensors are completed one after another.
    """
    half = messages.nbytes > per_round // 2
    small = messages.nbytes <= per_round // SMALL_PART
    kinds = [np.flatnonzero(chosen).astype(np.int32) for chosen in (half, ~half & ~small, small)]
    rounds = np.zeros(len(half), dtype=np.int32)
    _place_sent(rounds, kinds, _Rooms(messages, per_round))
    for some in kinds:
        _place_copies(rounds, some, messages)
    return rounds


def _place_sent(rounds: Indices, kinds: Sequence[Indices], rooms: "_Rooms") -> None:
    """Set the rounds of the messages between different ranks, one kind after the other."""
    for some in kinds:
        for at, found in rooms.take(some[rooms.are_sent(some)]):
            rounds[at] = found


class _Way:
    """Free room in the rounds of all ranks, in one direction."""

    def __init__(self, world: int, per_round: int, sizes: Integers) -> None:
        self.per_round = per_round
        self.sizes = sizes[:, None]
        self.left = np.empty((world, 0), dtype=np.int64)
        """Bytes left in each round of each rank."""
        self.full = np.empty((len(sizes), world, 0), dtype=np.uint64)
        """For each size and rank, a bit for every round without room for it."""
        self.open()

    def open(self) -> None:
        """Add rounds to all ranks."""
        world = len(self.left)
        new = np.full((world, _WORD), self.per_round, dtype=np.int64)
        self.left = np.concatenate([self.left, new], axis=1)
        none = np.zeros((*self.full.shape[:2], 1), dtype=np.uint64)
        self.full = np.concatenate([self.full, none], axis=2)

    def fill(self, ranks: Indices, rounds: Integers, nbytes: Integers) -> None:
        """Take room from a round of each of these ranks, which are distinct."""
        left = self.left[ranks, rounds] - nbytes
        self.left[ranks, rounds] = left
        bits = np.left_shift(np.uint64(1), (rounds % _WORD).astype(np.uint64))
        self.full[:, ranks, rounds // _WORD] |= np.where(self.sizes > left, bits, np.uint64(0))


class _Rooms:
    """Free room in the rounds of all ranks, in both directions."""

    def __init__(self, messages: Deliveries, per_round: int) -> None:
        """Start with empty rounds. Deliveries of more than half a round are to be placed first."""
        self.messages, self.half = messages, per_round // 2
        source, target, nbytes = messages
        # More than half a round needs a whole one.
        shared = _distinct_sizes(nbytes[(source != target) & (nbytes <= self.half)])
        self.sizes = np.array([*shared, per_round], dtype=np.int64)
        self.world = 1 + int(max(source.max(initial=-1), target.max(initial=-1)))
        self.ways = [_Way(self.world, per_round, self.sizes) for _ in ("outgoing", "incoming")]

    def are_sent(self, some: Indices) -> NDArray[np.bool_]:
        """Return which of some messages are between different ranks."""
        source, target, _ = self.messages
        between: NDArray[np.bool_] = source[some] != target[some]
        return between

    def take(self, sent: Indices) -> Iterator[tuple[Indices, Integers]]:
        """Take room for messages in order; yield indices, and the round of each."""
        waves = _waves(self.messages, sent, self.world)
        ordered = sent[np.argsort(waves, kind="stable")]
        stops = np.cumsum(np.bincount(waves)).tolist()
        for start, stop in zip([0, *stops], stops, strict=False):
            wave = ordered[start:stop]
            source, target, nbytes = self.messages
            yield wave, self._place(source[wave], target[wave], nbytes[wave])

    def _place(self, source: Indices, target: Indices, nbytes: Integers) -> Integers:
        """Take the first rounds for messages of which no two share a sender or a receiver."""
        outgoing, incoming = self.ways
        kinds = np.searchsorted(self.sizes, np.where(nbytes > self.half, self.sizes[-1], nbytes))
        bits = outgoing.full[kinds, source] | incoming.full[kinds, target]
        # The last word has room for all.
        words = (bits != _ALL).argmax(axis=1)
        found = bits[np.arange(len(words)), words]
        lowest = ~found & (found + np.uint64(1))
        # An exponent is exact up to 2 ** 63.
        rounds: Integers = words * _WORD + np.frexp(lowest.astype(np.float64))[1] - 1
        for way, ranks in ((outgoing, source), (incoming, target)):
            way.fill(ranks, rounds, nbytes)
        if (words == bits.shape[1] - 1).any():
            for way in self.ways:
                way.open()
        return rounds


def _waves(messages: Deliveries, sent: Indices, world: int) -> Indices:
    """Number messages so that those of equal numbers share neither sender nor receiver.

    A message has a higher number than the earlier ones of its sender and its receiver.
    """
    senders, receivers = [0] * world, [0] * world
    waves = array("i")
    for start in range(0, len(sent), _AT_ONCE):
        # A Python number takes several times an array's memory.
        part = sent[start : start + _AT_ONCE]
        pairs = messages.source[part].tolist(), messages.target[part].tolist()
        for sender, receiver in zip(*pairs, strict=True):
            wave = senders[sender]
            if wave < receivers[receiver]:  # noqa: PLR1730 - a call would double the time
                wave = receivers[receiver]
            waves.append(wave)
            senders[sender] = receivers[receiver] = wave + 1
    return np.array(waves, dtype=np.int32)


def _place_copies(rounds: Indices, some: Indices, messages: Deliveries) -> None:
    """Give each local copy of some messages the round of the last one before it to its rank."""
    ordered = some[np.argsort(messages.target[some], kind="stable")]
    targets = messages.target[ordered]
    # The high half of each number is its rank, so the maximum starts again with each rank.
    reached = targets.astype(np.int64)
    reached <<= 32
    reached |= rounds[ordered]
    np.maximum.accumulate(reached, out=reached)
    copies = messages.source[ordered] == targets
    rounds[ordered[copies]] = reached[copies] & 0xFFFFFFFF


def _distinct_sizes(sizes: Integers) -> Sequence[int]:
    """Return the distinct sizes, or a selection with the largest if there are many."""
    found: list[int] = np.unique(sizes).tolist()
    step = -(-len(found) // _MOST_SIZES)
    return found if step <= 1 else sorted({*found[::step], found[-1]})
