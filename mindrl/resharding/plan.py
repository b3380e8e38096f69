"""The plan of a reshard: which part of which tensor goes from which rank to which, and when.

A pure function of both sides: every rank makes the same plan for all ranks and carries out its
own part. Needs no torch.

The plan moves what a rank needs and does not hold, each element once. Where several ranks hold
it, the receiver's own node comes first, then the one that has sent least so far. Messages travel
in rounds; in a round a rank sends and receives at most a quarter of the bucket each way, so that
two rounds in flight stay within it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.models.sharding import Sharding
from mindrl.resharding.rounds import assign_rounds
from mindrl.resharding.senders import choose_senders
from mindrl.resharding.slices import Integers, LocalSlice, Slice, Slices, cut_into_slices

DEFAULT_BUCKET_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Which ranks share a node."""

    ranks_per_node: int

    def node_of(self, rank: int) -> int:
        """Return the node of a rank."""
        return rank // self.ranks_per_node

    def shared_nodes(self, world_size: int) -> NDArray[np.bool_]:
        """Return whether two ranks share a node, [world_size, world_size]."""
        nodes = np.arange(world_size) // self.ranks_per_node
        shared: NDArray[np.bool_] = nodes[:, None] == nodes
        return shared


@dataclass(frozen=True, kw_only=True)
class Routes:
    """One entry for each slice on its way to one rank; arrays of equal length."""

    slice: Integers
    """Index of the slice."""
    source: Integers
    """The rank that it is read on."""
    target: Integers
    """The rank that it is written on."""
    nbytes: Integers
    per_round: int
    """Bound on the bytes that a rank sends in a round, and on what it receives."""

    @cached_property
    def round(self) -> Integers:
        """The round that it travels in, or is copied in where both ranks are the same.

        Made when it is asked for: what travels between whom is known without.
        """
        return assign_rounds(self.source, self.target, self.nbytes, self.per_round)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One slice on its way, seen from a rank that takes part."""

    slice: Slice
    source: LocalSlice
    peer: int
    """The other rank; the rank itself for a local copy."""


@dataclass(frozen=True, kw_only=True)
class RankRound:
    """What one rank does in one round; messages of a pair keep one order on both ranks."""

    copies: list[Transfer]
    sends: dict[int, list[Transfer]]
    receives: dict[int, list[Transfer]]


@dataclass(frozen=True, kw_only=True)
class ReshardPlan:
    """All copies and messages of all ranks, in rounds."""

    world_size: int
    bucket_bytes: int
    dtype: DType
    """Of what travels, but for tensors that are always float32: the smaller of both sides'."""
    slices: Slices
    routes: Routes
    lower_bound: Integers
    """Bytes of what each rank needs and does not hold."""
    held_by: tuple[tuple[str, ...], ...]
    """Source shards of each rank."""

    @property
    def rounds(self) -> int:
        """Rounds that the plan takes."""
        return int(self.routes.round.max(initial=-1)) + 1

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """Routes between different ranks."""
        remote: NDArray[np.bool_] = self.routes.source != self.routes.target
        return remote

    @property
    def sent(self) -> Integers:
        """Bytes that each rank sends."""
        return self._sum(self.routes.source, self.remote)

    @property
    def received(self) -> Integers:
        """Bytes that each rank receives."""
        return self._sum(self.routes.target, self.remote)

    @property
    def copied(self) -> Integers:
        """Bytes that each rank copies within itself."""
        return self._sum(self.routes.target, ~self.remote)

    @property
    def pair_bytes(self) -> Integers:
        """Bytes from each rank (row) to each rank (column)."""
        pairs = self.routes.source * self.world_size + self.routes.target
        size = self.world_size**2
        flat = np.bincount(
            pairs[self.remote], weights=self.routes.nbytes[self.remote], minlength=size
        )
        return flat.astype(np.int64).reshape(self.world_size, self.world_size)

    @property
    def peak_staging(self) -> Integers:
        """Largest bytes of messages that each rank has in flight: those of two rounds."""
        total = np.zeros((self.rounds + 1, self.world_size), dtype=np.int64)
        for ranks in (self.routes.source, self.routes.target):
            at = (self.routes.round[self.remote], ranks[self.remote])
            np.add.at(total, at, self.routes.nbytes[self.remote])
        peak: Integers = (total[:-1] + total[1:]).max(axis=0, initial=0)
        return peak

    @cached_property
    def digest(self) -> bytes:
        """A hash of the whole plan, 16 bytes: equal plans, equal hashes."""
        state = blake2b(f"{self.world_size} {self.dtype} ".encode(), digest_size=16)
        state.update(repr(self.held_by).encode())
        for part in self.slices:
            state.update(repr(part).encode())
        routes = self.routes
        for array in (routes.slice, routes.source, routes.target, routes.round):
            state.update(array.tobytes())
        return state.digest()

    def of_rank(self, rank: int) -> list[RankRound]:
        """Return what one rank does, round by round."""
        steps = [RankRound(copies=[], sends={}, receives={}) for _ in range(self.rounds)]
        routes = self.routes
        ours = np.flatnonzero((routes.source == rank) | (routes.target == rank))
        for index in ours.tolist():
            part = self.slices[routes.slice[index]]
            source, target = int(routes.source[index]), int(routes.target[index])
            transfer = Transfer(
                slice=part,
                source=_place_of(part, self.held_by[source]),
                peer=target if source == rank else source,
            )
            step = steps[routes.round[index]]
            if source == target:
                step.copies.append(transfer)
            elif source == rank:
                step.sends.setdefault(target, []).append(transfer)
            else:
                step.receives.setdefault(source, []).append(transfer)
        return steps

    def _sum(self, ranks: Integers, chosen: NDArray[np.bool_]) -> Integers:
        sums = np.bincount(
            ranks[chosen], weights=self.routes.nbytes[chosen], minlength=self.world_size
        )
        return sums.astype(np.int64)


def plan_reshard(
    source: Sharding,
    target: Sharding,
    topology: Topology,
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    slices: Slices | None = None,
) -> ReshardPlan:
    """Plan the way from any side to any other; a rank may be on one of them, or on both.

    Args:
        source: Who holds the weights.
        target: Who needs them.
        topology: Which ranks share a node.
        bucket_bytes: Bound on the messages that a rank has in flight.
        slices: Of `slices_for_bucket`, where they are known: they do not change with the order of
            the ranks. None cuts them.

    Raises:
        ReshardError: The source side lacks something that the target side needs.
    """
    world_size = len(source.held_by)
    assert len(target.held_by) == world_size, "both sides speak of the same world"
    if slices is None:
        slices = slices_for_bucket(source, target, bucket_bytes)
    nodes = [topology.node_of(rank) for rank in range(world_size)]
    index, sender, receiver = choose_senders(slices, source, target, nodes)
    routes = Routes(
        slice=index,
        source=sender,
        target=receiver,
        nbytes=slices.wire_bytes[index],
        per_round=_bytes_of_round(bucket_bytes),
    )
    return ReshardPlan(
        world_size=world_size,
        bucket_bytes=bucket_bytes,
        dtype=min(source.dtype, target.dtype, key=ELEMENT_BYTES.__getitem__),
        slices=slices,
        routes=routes,
        lower_bound=_missing(slices, source, target),
        held_by=source.held_by,
    )


def slices_for_bucket(source: Sharding, target: Sharding, bucket_bytes: int) -> Slices:
    """Return what travels between two sides, none of it too large for a round.

    Raises:
        ReshardError: The source side lacks something that the target side needs.
    """
    return cut_into_slices(source, target, largest_bytes=_bytes_of_round(bucket_bytes))


def _place_of(part: Slice, held: Sequence[str]) -> LocalSlice:
    """Return where a rank with these shards reads a slice: in the first that has it."""
    places = zip(part.source_shards, part.sources, strict=True)
    return next(place for shard, place in places if shard in held)


def _bytes_of_round(bucket_bytes: int) -> int:
    return bucket_bytes // 4


def _missing(slices: Slices, source: Sharding, target: Sharding) -> Integers:
    """Add up, for each rank, what it needs and does not hold."""
    missing = np.zeros(len(source.held_by), dtype=np.int64)
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for rank, held in enumerate(zip(source.held_by, target.held_by, strict=True)):
        alike.setdefault(held, []).append(rank)
    by_shard: dict[str, dict[tuple[str, ...], int]] = {}
    for (shard, holders), size in slices.bytes_by_way.items():
        by_shard.setdefault(shard, {})[holders] = size
    for (holds, needs), ranks in alike.items():
        missing[ranks] = sum(
            size
            for shard in needs
            for holders, size in by_shard.get(shard, {}).items()
            if not set(holders) & set(holds)
        )
    return missing
