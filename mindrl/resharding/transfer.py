"""Carries out a reshard plan: one rank's copies and messages, round by round.

Two rounds are in flight: while one travels, the next is packed. A rank holds no more than the
plan's bucket of messages; tensors are opened when their first slice arrives and closed when
their last one is written, so an engine that packs its weights can do so module by module.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mindrl.models.decoder import always_float32
from mindrl.models.orientation import oriented
from mindrl.models.placement import volume
from mindrl.resharding.checksum import checksum
from mindrl.resharding.exchange import Channel, Message
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
        self.rounds_done = 0
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
            self.channel.note_round(0)
            self.channel.agree(self.plan.digest)
            self.agreed = True
        _Run(self, source, sink, Checksums() if verify else None).run()

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
        self.arenas = [_Arenas(transfer, parity) for parity in (0, 1)]
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
            transfer.rounds_done += 1
            transfer.channel.note_round(transfer.rounds_done)
        self._finish(flying)
        if self.checksums:
            self.checksums.compare(transfer.channel)

    def _start(self, index: int, step: RankRound) -> list[Message]:
        """Pack and post all messages of a round."""
        arenas = self.arenas[index % 2]
        sends = arenas.outgoing.messages(self._by_type(step.sends))
        for message in sends:
            for move, chunk in message.chunks():
                chunk.copy_(self._read(move))
                self._has_read(move)
        receives = arenas.incoming.messages(self._by_type(step.receives))
        return self.transfer.channel.post(index, sends, receives)

    def _finish(self, messages: Iterable[Message]) -> None:
        """Wait for the messages of a round and unpack those that came in."""
        messages = list(messages)
        self.transfer.channel.wait(messages)
        for message in messages:
            if message.incoming:
                for move, chunk in message.chunks():
                    self._target(move).copy_(chunk)
                    self._has_written(move)

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

    def _by_type(
        self, moves_of: dict[int, list[Move]]
    ) -> list[tuple[int, torch.dtype, list[Move]]]:
        """Sort moves into messages, those of wide types first: then all of them are aligned."""
        sorted_moves: dict[tuple[int, int], list[Move]] = {}
        for peer, moves in moves_of.items():
            for move in moves:
                width = self.transfer.wire_dtype(move.cell.tensor).itemsize
                sorted_moves.setdefault((-width, peer), []).append(move)
        types = {-4: torch.float32, -2: torch.bfloat16}
        return [
            (peer, types[width], moves) for (width, peer), moves in sorted(sorted_moves.items())
        ]


class _Arena:
    """The memory of the messages of one round, one way; used again two rounds later."""

    def __init__(self, size: int, device: torch.device, *, incoming: bool) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.incoming = incoming

    def messages(self, parts: list[tuple[int, torch.dtype, list[Move]]]) -> list[Message]:
        """Lay out messages one behind the other."""
        messages, offset = [], 0
        for peer, dtype, moves in parts:
            size = dtype.itemsize * sum(volume(move.cell.box) for move in moves)
            memory = self.memory[offset : offset + size].view(dtype)
            messages.append(Message(peer=peer, moves=moves, memory=memory, incoming=self.incoming))
            offset += size
        return messages


class _Arenas:
    """The memory of every other round."""

    def __init__(self, transfer: Transfer, parity: int) -> None:
        rounds = transfer.rounds[parity::2]
        sends = max((_bytes(step.sends) for step in rounds), default=0)
        receives = max((_bytes(step.receives) for step in rounds), default=0)
        self.outgoing = _Arena(sends, transfer.channel.device, incoming=False)
        self.incoming = _Arena(receives, transfer.channel.device, incoming=True)


def _bytes(moves_of: dict[int, list[Move]]) -> int:
    return sum(move.cell.wire_bytes for moves in moves_of.values() for move in moves)
