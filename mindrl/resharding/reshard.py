"""Execute a reshard plan: one rank's copies and messages, round by round.

Two rounds are in flight: while one is sent, the next is packed. A rank holds at most the plan's
bucket of messages. A tensor is opened when its first slice arrives and closed when its last one is
written, so an engine that packs its weights can do so module by module.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from mindrl.models.decoder import always_float32
from mindrl.models.orientation import oriented
from mindrl.models.placement import Box, relative
from mindrl.observability.trace import span
from mindrl.resharding.exchange import Channel, Message, Staging, messages_of
from mindrl.resharding.plan import RankRound, ReshardPlan, Transfer
from mindrl.resharding.verify import Checksums, Sums, checksum


class WeightSource(Protocol):
    """This rank's tensors on the source side."""

    def read(self, name: str, box: Box) -> Tensor:
        """Return a box of a local tensor of the table, with its dimensions, on the device."""

    def release(self, name: str) -> None:
        """Called after the last read of a local tensor."""


class WeightSink(Protocol):
    """This rank's tensors on the target side."""

    def open(self, name: str) -> Tensor:
        """Return the tensor to fill, in the shape of the table; the same until closed."""

    def close(self, name: str) -> None:
        """Called after every element has been written."""


class Reshard:
    """One rank's part of a plan, which can run repeatedly."""

    def __init__(
        self,
        plan: ReshardPlan,
        channel: Channel,
        source_names: Collection[str],
        target_names: Collection[str],
    ) -> None:
        """Extract this rank's part of a plan that is the same on all ranks of the channel.

        The channel's store must not be used by another reshard. The names are those of the local
        tensors that this rank has on either side.
        """
        self.plan = plan
        self.channel = channel
        self.rounds = plan.of_rank(channel.group.rank())
        self.runs = 0
        # Number of reads or writes of each tensor; 0 if it is only padding.
        self.reads = Counter(dict.fromkeys(source_names, 0))
        self.writes = Counter(dict.fromkeys(target_names, 0))
        for step in self.rounds:
            read, written = (
                [*step.copies, *chain(*by.values())] for by in (step.sends, step.receives)
            )
            self.reads.update(transfer.source.name for transfer in read)
            self.writes.update(transfer.slice.target.name for transfer in written)

    @torch.no_grad()
    def run(self, source: WeightSource, sink: WeightSink, *, verify: bool = False) -> None:
        """Move the weights. A collective over the group.

        `verify` compares a checksum of every slice on both sides at the end.

        Raises:
            ReshardError: The ranks have different plans, a peer is silent or gone, or checksums
                differ.
        """
        if not self.runs:
            self.channel.note_runs(0)
            self.channel.agree(self.plan.digest)
            self.channel.connect()
        _Run(self, source, sink, Checksums() if verify else None).run()
        self.runs += 1
        self.channel.note_runs(self.runs)

    def wire_dtype(self, tensor: str) -> torch.dtype:
        """Return the dtype in which a logical tensor is sent."""
        if always_float32(tensor) or self.plan.dtype == "float32":
            return torch.float32
        return torch.bfloat16


class _Run:
    """One execution of all rounds."""

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
        # Two rounds are in flight, each with memory for outgoing and incoming messages.
        self.staging = [Staging(reshard.channel.device) for _ in range(4)]
        self.written: dict[str, list[Transfer]] = {}

    def run(self) -> None:
        reshard = self.reshard
        for name, count in self.reads.items():
            if not count:
                self.source.release(name)
        for name, count in self.writes.items():
            if not count:
                self.sink.open(name)
                self.sink.close(name)
        flying: list[Message] = []
        for index, step in enumerate(reshard.rounds):
            with span("reshard round", round=index):
                starting = self._start(index, step)
                for transfer in step.copies:
                    self._target(transfer).copy_(self._read(transfer))
                    self._has_read(transfer)
                    self._has_written(transfer)
                self._finish(flying)
            flying = starting
        with span("last reshard messages"):
            self._finish(flying)
        if self.checksums:
            self.checksums.compare(reshard.channel)

    def _start(self, index: int, step: RankRound) -> list[Message]:
        """Pack and post all messages of a round."""
        reshard = self.reshard
        outgoing, incoming = self.staging[index % 2 :: 2]
        sends = messages_of(step.sends, reshard.wire_dtype, self._read, outgoing)
        for message in sends:
            for transfer, chunk in message.staged_chunks():
                chunk.copy_(self._read(transfer))
        receives = messages_of(step.receives, reshard.wire_dtype, self._target, incoming)
        return reshard.channel.post(index, sends, receives)

    def _finish(self, messages: Sequence[Message]) -> None:
        """Wait for the messages of a round and unpack the incoming ones."""
        self.reshard.channel.wait(messages)
        for message in messages:
            if message.incoming:
                for transfer, chunk in message.staged_chunks():
                    self._target(transfer).copy_(chunk)
            has_done = self._has_written if message.incoming else self._has_read
            for transfer in message.transfers:
                has_done(transfer)

    def _read(self, transfer: Transfer) -> Tensor:
        name, box, axes = transfer.source
        part = self.source.read(name, box)
        # The part starts at 0 in each dimension, so its box is relative to itself.
        return part if axes is None else oriented(part, relative(box, box), axes)

    def _target(self, transfer: Transfer) -> Tensor:
        name, box, axes = transfer.slice.target
        return oriented(self.sink.open(name), box, axes)

    def _has_read(self, transfer: Transfer) -> None:
        if self.checksums:
            self._note(self.checksums.read, transfer, self._read(transfer))
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
            # Checksums cover the finished tensor: a later slice may have overwritten an earlier
            # one.
            for each in transfers:
                self._note(self.checksums.written, each, self._target(each))
        self.sink.close(name)

    def _note(self, sums: Sums, transfer: Transfer, values: Tensor) -> None:
        wired = values.to(self.reshard.wire_dtype(transfer.slice.tensor))
        sums[transfer.peer].append((transfer, checksum(wired)))
