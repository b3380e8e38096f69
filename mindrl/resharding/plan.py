"""The plan of a reshard: which part of which tensor is sent between which ranks, and when.

A pure function of both sides: every rank computes the same plan for all ranks and executes its own
part. Imports no torch.

A rank receives each element that it needs and does not hold exactly once.
"""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.models.sharding import Sharding
from mindrl.resharding.routes import Routes, choose_senders, missing_bytes
from mindrl.resharding.slices import Integers, LocalSlice, Slice, Slices, cut_into_slices

DEFAULT_BUCKET_BYTES = 256 << 20
LARGE_BYTES = 256 << 10
"""A transfer of at least so many bytes is a message of its own."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Which ranks share a node."""

    ranks_per_node: int
    """Ranks fill the nodes in order, with this many on each."""
    placed: tuple[int, ...] | None = None
    """Node of each rank, if ranks do not fill the nodes in order."""

    def nodes(self, world_size: int) -> Integers:
        """Return the node of each rank."""
        if self.placed is not None:
            assert len(self.placed) == world_size, "the topology has this world's size"
            return np.array(self.placed, dtype=np.int64)
        nodes: Integers = np.arange(world_size) // self.ranks_per_node
        return nodes

    def shared_nodes(self, world_size: int) -> NDArray[np.bool_]:
        """Return whether two ranks share a node, [world_size, world_size]."""
        nodes = self.nodes(world_size)
        shared: NDArray[np.bool_] = nodes[:, None] == nodes
        return shared


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One slice that is sent or copied, as seen by a rank that takes part."""

    slice: Slice
    source: LocalSlice
    peer: int
    """The other rank; the rank itself for a local copy."""


@dataclass(frozen=True, kw_only=True)
class RankRound:
    """Work of one rank in one round; both ranks of a pair keep the same message order."""

    copies: list[Transfer]
    sends: dict[int, list[Transfer]]
    receives: dict[int, list[Transfer]]


@dataclass(frozen=True, kw_only=True)
class ReshardPlan:
    """All copies and messages of all ranks, in rounds."""

    world_size: int
    dtype: DType
    """Dtype on the wire, except for tensors that are always float32: the smaller of both sides'."""
    slices: Slices
    routes: Routes
    lower_bound: Integers
    """Bytes that each rank needs and does not hold."""
    held_by: tuple[tuple[str, ...], ...]
    """Source shards of each rank."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self.routes.round.max(initial=-1)) + 1

    @cached_property
    def remote(self) -> NDArray[np.bool_]:
        """Mask of the routes between different ranks."""
        remote: NDArray[np.bool_] = self.routes.source != self.routes.target
        return remote

    @cached_property
    def _moved(self) -> Integers:
        """Bytes from each rank (row) to each rank (column); the diagonal is local copies."""
        pairs = self.routes.source * self.world_size + self.routes.target
        sums = np.bincount(pairs, weights=self.routes.nbytes, minlength=self.world_size**2)
        return sums.astype(np.int64).reshape(self.world_size, self.world_size)

    @property
    def copied(self) -> Integers:
        """Bytes that each rank copies within itself."""
        return self._moved.diagonal()

    @cached_property
    def pair_bytes(self) -> Integers:
        """Bytes from each rank (row) to each other rank (column)."""
        return self._moved - np.diag(self.copied)

    @property
    def sent(self) -> Integers:
        """Bytes that each rank sends."""
        sent: Integers = self.pair_bytes.sum(axis=1)
        return sent

    @property
    def received(self) -> Integers:
        """Bytes that each rank receives."""
        received: Integers = self.pair_bytes.sum(axis=0)
        return received

    @cached_property
    def peak_staging(self) -> Integers:
        """Maximum bytes of messages that each rank has in flight: those of two rounds."""
        total = np.zeros((self.rounds + 1, self.world_size), dtype=np.int64)
        for ranks in (self.routes.source, self.routes.target):
            at = (self.routes.round[self.remote], ranks[self.remote])
            np.add.at(total, at, self.routes.nbytes[self.remote])
        peak: Integers = (total[:-1] + total[1:]).max(axis=0, initial=0)
        return peak

    @cached_property
    def digest(self) -> bytes:
        """Hash of the whole plan, 16 bytes."""
        state = blake2b(f"{self.world_size} {self.dtype} ".encode(), digest_size=16)
        state.update(repr((self.held_by, self.slices.ways)).encode())
        state.update(self.slices.digest)
        routes = self.routes
        for array in (routes.bundle, routes.source, routes.target, routes.round):
            state.update(array.tobytes())
        return state.digest()

    def of_rank(self, rank: int) -> list[RankRound]:
        """Return the work of one rank, round by round."""
        steps = [RankRound(copies=[], sends={}, receives={}) for _ in range(self.rounds)]
        routes = self.routes
        ours = np.flatnonzero((routes.source == rank) | (routes.target == rank))
        members = self.slices.bundles.members
        for index in ours.tolist():
            source, target = int(routes.source[index]), int(routes.target[index])
            peer, step = target if source == rank else source, steps[routes.round[index]]
            transfers = [self._transfer(at, source, peer) for at in members[routes.bundle[index]]]
            if source == target:
                step.copies.extend(transfers)
            else:
                way = step.sends if source == rank else step.receives
                way.setdefault(peer, []).extend(transfers)
        return steps

    def _transfer(self, at: int, source: int, peer: int) -> Transfer:
        part = self.slices[at]
        # A rank reads a slice from its first shard that has it.
        places = zip(part.source_shards, part.sources, strict=True)
        place = next(place for shard, place in places if shard in self.held_by[source])
        return Transfer(slice=part, source=place, peer=peer)


def plan_reshard(
    source: Sharding,
    target: Sharding,
    topology: Topology,
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    slices: Slices | None = None,
) -> ReshardPlan:
    """Plan a reshard between two shardings of the same world; a rank may be on one side or both.

    `bucket_bytes` bounds the messages that a rank has in flight. `slices` are those of
    `slices_for_bucket`, if already known: they do not depend on the order of the ranks.

    Raises:
        ReshardError: The source side lacks a part that the target side needs.
    """
    world_size = len(source.held_by)
    assert len(target.held_by) == world_size, "both sides have the same world"
    if slices is None:
        slices = slices_for_bucket(source, target, bucket_bytes)
    nodes, per_round = topology.nodes(world_size), _bytes_of_round(bucket_bytes)
    return ReshardPlan(
        world_size=world_size,
        dtype=min(source.dtype, target.dtype, key=ELEMENT_BYTES.__getitem__),
        slices=slices,
        routes=choose_senders(slices, source, target, nodes, per_round),
        lower_bound=missing_bytes(slices, source, target),
        held_by=source.held_by,
    )


def slices_for_bucket(source: Sharding, target: Sharding, bucket_bytes: int) -> Slices:
    """Return the slices between two sides, each small enough for a round.

    Raises:
        ReshardError: The source side lacks a part that the target side needs.
    """
    return cut_into_slices(source, target, largest_bytes=_bytes_of_round(bucket_bytes))


def _bytes_of_round(bucket_bytes: int) -> int:
    """Return the bound on the bytes that a rank sends in a round, and on those it receives.

    Two rounds are in flight, so a quarter in each direction stays within the bucket.
    """
    return bucket_bytes // 4
