"""Messages between the ranks of a reshard, with a time limit and the names of silent peers.

A large transfer is a message of its own. If its weights are contiguous in device memory, it is sent
from, or received into, the weights themselves without a copy on that side. Small transfers to the
same rank are packed into one message.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.errors import ReshardError
from mindrl.models.placement import volume
from mindrl.observability.progress import tick
from mindrl.observability.trace import span
from mindrl.resharding.plan import LARGE_BYTES, Transfer

_POLL_SECONDS = 0.0005
"""Interval between checks whether a device has ended an operation."""
_REPORT_SECONDS = 3.0
"""Seconds that a timed-out rank waits for other ranks to report their timeouts."""
_VERDICT, _AGREED = "verdict", "agreed"
"""Key and value that show all ranks that their plans are equal."""


@dataclass(kw_only=True)
class Message:
    """Data sent between two ranks at once, with one dtype."""

    peer: int
    transfers: list[Transfer]
    memory: Tensor
    """One-dimensional: a part of the staging memory, or the weights themselves."""
    staged: bool
    """Whether `memory` is staging memory, which transfers are packed into or unpacked from."""
    incoming: bool = False
    round: int = -1
    works: list[dist.Work] = field(default_factory=list)

    def staged_chunks(self) -> Iterator[tuple[Transfer, Tensor]]:
        """Yield each staged transfer with its part of the memory, in the shape of its box."""
        offset = 0
        for transfer in self.transfers if self.staged else ():
            size = volume(transfer.slice.box)
            shape = [stop - start for start, stop in transfer.slice.box]
            yield transfer, self.memory[offset : offset + size].view(shape)
            offset += size


class Staging:
    """Memory for the packed messages of one round, on the device of the group's backend."""

    def __init__(self, device: torch.device) -> None:
        """Start empty; later rounds reuse the memory."""
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def take(self, size: int) -> Tensor:
        """Return `size` bytes, with undefined contents."""
        if self.memory.numel() < size:
            self.memory = self.memory.new_empty(size)
        return self.memory[:size]


def messages_of(
    transfers_of: Mapping[int, list[Transfer]],
    wire_dtype: Callable[[str], torch.dtype],
    view: Callable[[Transfer], Tensor],
    staging: Staging,
) -> list[Message]:
    """Lay out one direction of a round's messages; both ends compute the same messages.

    `transfers_of` is keyed by the other rank, `view` returns this rank's end of a transfer, and
    `staging` holds transfers that are not sent or received in place.
    """
    groups: defaultdict[tuple[int, int, int, torch.dtype], list[Transfer]] = defaultdict(list)
    for peer, transfers in transfers_of.items():
        for at, transfer in enumerate(transfers):
            dtype = wire_dtype(transfer.slice.tensor)
            # Large transfers are separate messages. Wide dtypes come first, so that every part is
            # aligned.
            place = at if _is_large(transfer) else len(transfers)
            groups[-dtype.itemsize, peer, place, dtype].append(transfer)
    ordered = [(peer, dtype, group) for (_, peer, _, dtype), group in sorted(groups.items())]
    direct = [_in_one_run(group, view, dtype, staging) for _, dtype, group in ordered]
    sizes = [
        sum(transfer.slice.wire_bytes for transfer in group) if memory is None else 0
        for (_, _, group), memory in zip(ordered, direct, strict=True)
    ]
    parts = staging.take(sum(sizes)).split_with_sizes(sizes)
    return [
        Message(
            peer=peer,
            transfers=group,
            memory=part.view(dtype) if memory is None else memory,
            staged=memory is None,
        )
        for (peer, dtype, group), memory, part in zip(ordered, direct, parts, strict=True)
    ]


def _is_large(transfer: Transfer) -> bool:
    return transfer.slice.wire_bytes >= LARGE_BYTES


def _in_one_run(
    group: list[Transfer], view: Callable[[Transfer], Tensor], dtype: torch.dtype, staging: Staging
) -> Tensor | None:
    """Return the weights of a large transfer if it can be sent or received in place.

    An export fills host memory, which a device's collective library cannot reach.
    """
    if not _is_large(group[0]):
        return None
    values, wanted = view(group[0]), (dtype, staging.memory.device)
    fits = values.is_contiguous() and (values.dtype, values.device) == wanted
    return values.view(-1) if fits else None


@dataclass(frozen=True)
class Channel:
    """Point-to-point messages between the ranks of one group.

    Reports that must arrive when messages fail go through the group's store.
    """

    group: dist.ProcessGroup
    store: dist.Store  # type: ignore[name-defined]
    device: torch.device
    timeout_seconds: float
    names: tuple[str, ...] = ()
    """Names of the ranks in errors, if their numbers in the group would mislead."""

    def post(
        self, index: int, sends: Sequence[Message], receives: Sequence[Message]
    ) -> list[Message]:
        """Start the messages of a round; call `wait` afterwards.

        Raises:
            ReshardError: A peer is gone.
        """
        messages = [*sends, *receives]
        for message in messages:
            message.round = index
        for message in receives:
            message.incoming = True
        # gloo starts them one by one, and fails at a message to a lost peer.
        one_by_one = self.device.type == "cpu"
        for batch in [[each] for each in messages] if one_by_one else [messages]:
            self._begin(batch)
        return messages

    def _begin(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        operations = [
            dist.P2POp(
                dist.irecv if message.incoming else dist.isend,
                message.memory,
                group=self.group,
                group_peer=message.peer,
            )
            for message in messages
        ]
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise self._failure(messages[0], error, 0.0) from error
        # NCCL and HCCL return one handle for all of them.
        for message in messages:
            message.works = list(works)

    def wait(self, messages: Sequence[Message]) -> None:
        """Wait until all messages are sent and received.

        Raises:
            ReshardError: A peer is silent for longer than the time limit, or is gone.
        """
        with span("wait for messages", messages=len(messages)):
            self._wait(messages)

    def _wait(self, messages: Sequence[Message]) -> None:
        start = time.monotonic()
        for message in messages:
            tick()
            for work in message.works:
                left = max(0.001, start + self.timeout_seconds - time.monotonic())
                try:
                    self._wait_for(work, left)
                except RuntimeError as error:
                    raise self._failure(message, error, time.monotonic() - start) from error

    def _wait_for(self, work: dist.Work, seconds: float) -> None:
        """Wait for an operation; raises RuntimeError if it fails, or does not end in time."""
        if self.device.type != "cpu":
            # On a device `wait` ignores its limit, and returns before the operation has ended.
            ends = time.monotonic() + seconds
            while not work.is_completed():
                if time.monotonic() > ends:
                    raise RuntimeError("the peer did not answer")
                time.sleep(_POLL_SECONDS)
        work.wait(timedelta(seconds=seconds))

    def swap(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """Exchange one tensor with each of several ranks, outside the rounds.

        Raises:
            ReshardError: A peer is silent for longer than the time limit, or is gone.
        """
        sends, receives = (
            [Message(peer=peer, transfers=[], memory=each, staged=False) for peer, each in side]
            for side in (outgoing.items(), incoming.items())
        )
        self.wait(self.post(-1, sends, receives))

    def agree(self, digest: bytes) -> None:
        """Compare a hash of the plan over all ranks, before the first byte is sent.

        Rank 0 compares, and the others read its verdict: each rank asks the store for one value.

        Raises:
            ReshardError: Names the ranks with another plan, or without an answer.
        """
        self._publish("plan", digest.hex())
        if self.group.rank() == 0:
            self.store.set(_VERDICT, self._verdict())
        verdict = self._heard()
        if verdict != _AGREED:
            raise ReshardError(f"{verdict}; no weights were moved")

    def _verdict(self) -> str:
        """Wait for all plans; return how they differ."""
        ranks = range(self.group.size())
        if silent := self._silent("plan", self.timeout_seconds):
            return self._silence_text(silent)
        plans = self.store.multi_get([f"plan {rank}" for rank in ranks])
        others = [rank for rank in ranks if plans[rank] != plans[0]]
        if not others:
            return _AGREED
        return f"{self._ranks_text(others)} and {self.name_of(0)} have different reshard plans"

    def _heard(self) -> str:
        """Wait for rank 0's verdict, a little longer than rank 0 waits for the plans."""
        try:
            self.store.wait([_VERDICT], timedelta(seconds=self.timeout_seconds + _REPORT_SECONDS))
            return str(self.store.get(_VERDICT).decode())
        except dist.DistNetworkError:
            # The store is in the first rank's process.
            return self._silence_text([0])
        except RuntimeError:
            return self._silence_text(self._silent("plan", 0.001) or [0])

    def _silence_text(self, silent: Sequence[int]) -> str:
        return f"{self._ranks_text(silent)} did not answer within {self.timeout_seconds:g} s"

    def connect(self) -> None:
        """Connect all ranks, once `agree` has shown that they are there.

        The collective library of a device connects the ranks of a group in its first operation, in
        which all of them must take part; a rank may have no messages.

        Raises:
            ReshardError: A rank does not take part in time.
        """
        if self.device.type == "cpu":
            return
        work = dist.all_reduce(torch.zeros(1, device=self.device), group=self.group, async_op=True)
        assert work is not None, "asynchronous"
        try:
            self._wait_for(work, self.timeout_seconds)
        except RuntimeError as error:
            text = f"the ranks did not connect within {self.timeout_seconds:g} s"
            raise ReshardError(f"{self.name_of(self.group.rank())}: {text}: {error}") from error

    def _failure(
        self, message: Message, error: RuntimeError, waited_seconds: float
    ) -> ReshardError:
        what = "checksums" if message.round < 0 else f"bucket {message.round}"
        text = (
            f"{self.name_of(self.group.rank())} waited {waited_seconds:.0f} s for {what} of the "
            f"reshard with {self.name_of(message.peer)}"
        )
        if waited_seconds < self.timeout_seconds * 0.9:
            return ReshardError(f"{text}: {str(error).strip() or 'the connection broke'}")
        # The peer may itself be waiting: blame the ranks that report no timeout and have finished
        # the fewest reshards.
        self._publish("stuck", what)
        complaining = set(range(self.group.size())) - set(self._silent("stuck", _REPORT_SECONDS))
        try:
            reached = {
                rank: int(self.store.get(f"runs {rank}"))
                for rank in range(self.group.size())
                if rank not in complaining
            }
        except RuntimeError:
            return ReshardError(f"{text}; {self.name_of(0)} has ended")
        behind = [rank for rank, at in reached.items() if at == min(reached.values())]
        return ReshardError(
            (f"{text}; {self._ranks_text(behind)} did not get this far") if behind else text
        )

    def note_runs(self, count: int) -> None:
        """Publish the number of reshards that this rank has finished."""
        self._publish("runs", str(count))

    def _publish(self, what: str, value: str) -> None:
        self.store.set(f"{what} {self.group.rank()}", value)

    def _silent(self, what: str, timeout_seconds: float) -> list[int]:
        """Wait until every rank has published `what`; returns those that have not."""
        return silent_ranks(self.store, what, self.group.size(), timeout_seconds)

    def name_of(self, rank: int) -> str:
        """Return the name of a rank in errors."""
        return self.names[rank] if self.names else f"rank {rank}"

    def _ranks_text(self, ranks: Sequence[int]) -> str:
        if self.names:
            return ", ".join(map(self.name_of, ranks))
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def silent_ranks(
    store: dist.Store,  # type: ignore[name-defined]
    what: str,
    size: int,
    timeout_seconds: float,
) -> list[int]:
    """Wait until `size` ranks have set a key in a store; returns those that have not.

    The key is `what` and the rank, such as `plan 3`.
    """
    ranks = range(size)
    try:
        store.wait(keys_of(what, ranks), timedelta(seconds=timeout_seconds))
    except dist.DistNetworkError:
        # The store is in the first rank's process.
        return [0]
    except RuntimeError:
        return _without_key(store, what, ranks)
    return []


def keys_of(what: str, ranks: Sequence[int]) -> list[str]:
    """Return the keys that `silent_ranks` waits for."""
    return [f"{what} {rank}" for rank in ranks]


def _without_key(store: dist.Store, what: str, ranks: Sequence[int]) -> list[int]:  # type: ignore[name-defined]
    """Return the ranks that have not set their key.

    Many ranks ask one store, so each checks halves: few silent ranks take few calls.
    """
    if store.check(keys_of(what, ranks)):
        return []
    if len(ranks) == 1:
        return [*ranks]
    middle = len(ranks) // 2
    halves = ranks[:middle], ranks[middle:]
    return [rank for half in halves for rank in _without_key(store, what, half)]
