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
from mindrl.resharding.plan import RankRound, ReshardPlan, Transfer
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


class Reshard:
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
            channel: Between the ranks of both sides; no other reshard uses its store.
            names: What this rank has on each side.
        """
        self.plan = plan
        self.names = names
        self.channel = channel
        self.rounds = plan.of_rank(channel.group.rank())
        self.agreed = False
        self.runs = 0
        self.reads = Counter(transfer.source.name for transfer in self._transfers(reads=True))
        self.writes = Counter(
            transfer.slice.target.name for transfer in self._transfers(reads=False)
        )

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

    def _transfers(self, *, reads: bool) -> Iterator[Transfer]:
        for step in self.rounds:
            yield from step.copies
            for transfers in (step.sends if reads else step.receives).values():
                yield from transfers


class _Run:
    """One pass over the rounds."""

    def __init__(
        self,
        reshard: Reshard,
        source: WeightSource,
        sink: WeightSink,
        checksums: Checksums | None,
    ) -> None:
        self.reshard = reshard
        self.source = source
        self.sink = sink
        self.checksums = checksums
        self.reads = reshard.reads.copy()
        self.writes = reshard.writes.copy()
        # Two rounds are in flight, each with memory for what goes out and for what comes in.
        self.staging = [Staging(reshard.channel.device) for _ in range(4)]
        self.written: dict[str, list[Transfer]] = {}

    def run(self) -> None:
        reshard = self.reshard
        for name in reshard.names.source:
            if name not in reshard.reads:
                self.source.release(name)
        for name in reshard.names.target:
            if name not in reshard.writes:
                # Nothing but padding.
                self.sink.open(name)
                self.sink.close(name)
        flying: list[Message] = []
        for index, step in enumerate(reshard.rounds):
            starting = self._start(index, step)
            for transfer in step.copies:
                self._copy(transfer)
            self._finish(flying)
            flying = starting
        self._finish(flying)
        if self.checksums:
            self.checksums.compare(reshard.channel)

    def _start(self, index: int, step: RankRound) -> list[Message]:
        """Pack and post all messages of a round."""
        outgoing, incoming = self.staging[index % 2], self.staging[2 + index % 2]
        sends = messages_of(step.sends, self.reshard.wire_dtype, self._read, outgoing)
        for message in sends:
            for transfer, chunk in message.staged_chunks():
                chunk.copy_(self._read(transfer))
        receives = messages_of(step.receives, self.reshard.wire_dtype, self._target, incoming)
        return self.reshard.channel.post(index, sends, receives)

    def _finish(self, messages: Sequence[Message]) -> None:
        """Wait for the messages of a round and unpack those that came in."""
        self.reshard.channel.wait(messages)
        for message in messages:
            if message.incoming:
                for transfer, chunk in message.staged_chunks():
                    self._target(transfer).copy_(chunk)
            for transfer in message.transfers:
                if message.incoming:
                    self._has_written(transfer)
                else:
                    self._has_read(transfer)

    def _copy(self, transfer: Transfer) -> None:
        self._target(transfer).copy_(self._read(transfer))
        self._has_read(transfer)
        self._has_written(transfer)

    def _read(self, transfer: Transfer) -> Tensor:
        return oriented(
            self.source.read(transfer.source.name), transfer.source.box, transfer.source.axes
        )

    def _target(self, transfer: Transfer) -> Tensor:
        place = transfer.slice.target
        return oriented(self.sink.open(place.name), place.box, place.axes)

    def _has_read(self, transfer: Transfer) -> None:
        if self.checksums:
            self.checksums.add_source(
                transfer, checksum(self._wired(transfer, self._read(transfer)))
            )
        name = transfer.source.name
        self.reads[name] -= 1
        if not self.reads[name]:
            self.source.release(name)

    def _has_written(self, transfer: Transfer) -> None:
        name = transfer.slice.target.name
        self.written.setdefault(name, []).append(transfer)
        self.writes[name] -= 1
        if self.writes[name]:
            return
        transfers = self.written.pop(name)
        if self.checksums:
            # Of the finished tensor: a later slice may have been written over an earlier one.
            for each in transfers:
                self.checksums.add_target(each, checksum(self._wired(each, self._target(each))))
        self.sink.close(name)

    def _wired(self, transfer: Transfer, values: Tensor) -> Tensor:
        return values.to(self.reshard.wire_dtype(transfer.slice.tensor))
