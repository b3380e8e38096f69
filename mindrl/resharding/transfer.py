"""Carries out a reshard plan: one rank's copies and messages, round by round.

Two rounds are in flight: while one travels, the next is packed. A rank holds no more than the
plan's bucket of messages; tensors are opened when their first slice arrives and closed when
their last one is written, so an engine that packs its weights can do so module by module.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mindrl.models.decoder import always_float32
from mindrl.models.orientation import oriented
from mindrl.resharding.checksum import checksum
from mindrl.resharding.exchange import Channel
from mindrl.resharding.messages import Message, Staging, messages_of
from mindrl.resharding.plan import Move, RankRound, ReshardPlan
from mindrl.resharding.verify import Checksums


class WeightSource(Protocol):
    """This rank's tensors of the source side."""

    def read(self, name: str) -> Tensor:
        """Return a local tensor in the shape of the table, on the device."""

    def release(self, name: str) -> None:
        """Take note that the last reader of a local tensor has finished."""


class WeightSink(Protocol):
    """This rank's tensors of the target side."""

    def open(self, name: str) -> Tensor:
        """Return the tensor to be filled, in the shape of the table; the same until closed."""

    def close(self, name: str) -> None:
        """Take note that every element has been written."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Local names of one rank on either side; empty where it is not on that side."""

    source: tuple[str, ...]
    target: tuple[str, ...]


class Transfer:
    """One rank's part of a plan, carried out as often as wanted."""

    def __init__(
        self,
        plan: ReshardPlan,
        channel: Channel,
        names: Names,
    ) -> None:
        """Take this rank's part out of a plan.

        Args:
            plan: The same on all ranks of the channel; its ranks are the channel's.
            channel: Between the ranks of both sides; no other transfer uses its store.
            names: What this rank has on each side.
        """
        self.plan = plan
        self.names = names
        self.channel = channel
        self.rounds = plan.of_rank(channel.group.rank())
        self.agreed = False
        self.runs = 0
        self.reads = Counter(move.source.name for move in self._moves(reads=True))
        self.writes = Counter(move.cell.target.name for move in self._moves(reads=False))

    @torch.no_grad()
    def run(self, source: WeightSource, sink: WeightSink, *, verify: bool = False) -> None:
        """Move the weights. A collective over the group.

        Args:
            source: Where this rank's training weights are read.
            sink: Where this rank's rollout weights are written.
            verify: Compare a checksum of every slice on both sides at the end.

        Raises:
            ReshardError: The ranks have different plans, a peer is silent or gone, or, where
                they are compared, slices differ.
        """
        if not self.agreed:
            self.channel.note_runs(0)
            self.channel.agree(self.plan.digest)
            self.agreed = True
        _Run(self, source, sink, Checksums() if verify else None).run()
        self.runs += 1
        self.channel.note_runs(self.runs)

    def wire_dtype(self, tensor: str) -> torch.dtype:
        """Return the type that a logical tensor travels in."""
        if always_float32(tensor) or self.plan.dtype == "float32":
            return torch.float32
        return torch.bfloat16

    def _moves(self, *, reads: bool) -> Iterator[Move]:
        for step in self.rounds:
            yield from step.copies
            for moves in (step.sends if reads else step.receives).values():
                yield from moves


class _Run:
    """One pass over the rounds."""

    def __init__(
        self,
        transfer: Transfer,
        source: WeightSource,
        sink: WeightSink,
        checksums: Checksums | None,
    ) -> None:
        self.transfer = transfer
        self.source = source
        self.sink = sink
        self.checksums = checksums
        self.reads = transfer.reads.copy()
        self.writes = transfer.writes.copy()
        # Two rounds are in flight, each with memory for what goes out and for what comes in.
        self.staging = [Staging(transfer.channel.device) for _ in range(4)]
        self.written: dict[str, list[Move]] = {}

    def run(self) -> None:
        transfer = self.transfer
        for name in transfer.names.source:
            if name not in transfer.reads:
                self.source.release(name)
        for name in transfer.names.target:
            if name not in transfer.writes:
                # Nothing but padding.
                self.sink.open(name)
                self.sink.close(name)
        flying: list[Message] = []
        for index, step in enumerate(transfer.rounds):
            starting = self._start(index, step)
            for move in step.copies:
                self._copy(move)
            self._finish(flying)
            flying = starting
        self._finish(flying)
        if self.checksums:
            self.checksums.compare(transfer.channel)

    def _start(self, index: int, step: RankRound) -> list[Message]:
        """Pack and post all messages of a round."""
        outgoing, incoming = self.staging[index % 2], self.staging[2 + index % 2]
        sends = messages_of(step.sends, self.transfer.wire_dtype, self._read, outgoing)
        for message in sends:
            for move, chunk in message.staged_chunks():
                chunk.copy_(self._read(move))
        receives = messages_of(step.receives, self.transfer.wire_dtype, self._target, incoming)
        return self.transfer.channel.post(index, sends, receives)

    def _finish(self, messages: Sequence[Message]) -> None:
        """Wait for the messages of a round and unpack those that came in."""
        self.transfer.channel.wait(messages)
        for message in messages:
            if message.incoming:
                for move, chunk in message.staged_chunks():
                    self._target(move).copy_(chunk)
            for move in message.moves:
                if message.incoming:
                    self._has_written(move)
                else:
                    self._has_read(move)

    def _copy(self, move: Move) -> None:
        self._target(move).copy_(self._read(move))
        self._has_read(move)
        self._has_written(move)

    def _read(self, move: Move) -> Tensor:
        return oriented(self.source.read(move.source.name), move.source.box, move.source.axes)

    def _target(self, move: Move) -> Tensor:
        spot = move.cell.target
        return oriented(self.sink.open(spot.name), spot.box, spot.axes)

    def _has_read(self, move: Move) -> None:
        if self.checksums:
            self.checksums.add_source(move, checksum(self._wired(move, self._read(move))))
        name = move.source.name
        self.reads[name] -= 1
        if not self.reads[name]:
            self.source.release(name)

    def _has_written(self, move: Move) -> None:
        name = move.cell.target.name
        self.written.setdefault(name, []).append(move)
        self.writes[name] -= 1
        if self.writes[name]:
            return
        moves = self.written.pop(name)
        if self.checksums:
            # Of the finished tensor: a later slice may have been written over an earlier one.
            for each in moves:
                self.checksums.add_target(each, checksum(self._wired(each, self._target(each))))
        self.sink.close(name)

    def _wired(self, move: Move, values: Tensor) -> Tensor:
        return values.to(self.transfer.wire_dtype(move.cell.tensor))
