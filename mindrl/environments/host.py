"""The environments of a run, on its driver: started, called, killed and replayed.

A process that gives no answer in time, ends, or sends too much is killed. The same seed and the
same actions then bring a new process to the same state, which the fingerprints of all answers
prove; it answers the turn. An environment that fails again, or raises, has failed.
"""

import selectors
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from socket import recv_fds, socket, socketpair
from typing import Any, NamedTuple

from mindrl.environments.messages import Action, EnvironmentAnswer, Failed, Frames, Opening
from mindrl.environments.process import PID, EnvironmentSpec
from mindrl.errors import ConfigError, EnvironmentFailedError
from mindrl.platform.guard import end_guarded, start_guarded

_STOP_SECONDS = 10.0


class Key(NamedTuple):
    """A conversation."""

    owner: str
    """The caller that gets the answers."""
    group: int
    response: int
    """Index in its group."""


Past = Sequence[tuple[Action, str]]
"""Earlier turns of a conversation, and the fingerprint of each answer."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the processes of a run."""

    processes: int
    """Maximum at a time for each owner; further conversations wait."""
    start_seconds: float
    """Limit of the imports, and of a conversation's start."""
    call_seconds: float
    """Limit of the answer to a turn."""
    answer_bytes: int = 1 << 20
    """Largest answer."""


@dataclass(kw_only=True, eq=False)
class _Conversation:
    """One conversation, and its process while it has one."""

    key: Key
    seed: int
    row: Mapping[str, Any]
    past: list[tuple[Action, str]]
    action: Action | None = None
    """The turn to be answered."""
    acted_at: float = 0.0
    """When its answer was requested, by the machine's clock."""
    has_opened: bool = False
    """Whether the caller knows the opening."""
    opening: Opening | None = None
    """With what it began; None if that is not known."""
    frames: Frames | None = None
    pid: int = 0
    replayed: int = -1
    """Number of turns that the process has answered; -1 before it has begun."""
    ends: float = 0.0
    """When the wait for its process ends."""
    is_busy: bool = False
    was_lost: bool = False
    """Whether a process of the current turn was lost."""


@dataclass(kw_only=True)
class EnvironmentHost:
    """All environments of a run."""

    spec: EnvironmentSpec
    limits: Limits
    lost: int = 0
    """Number of lost processes since the last look."""
    _open: dict[Key, _Conversation] = field(default_factory=dict, init=False)
    _waiting: deque[_Conversation] = field(default_factory=deque, init=False)
    _running: Counter[str] = field(default_factory=Counter, init=False)
    """Number of processes of each owner."""
    _unread: list[tuple[Key, Opening | EnvironmentAnswer | Failed]] = field(
        default_factory=list, init=False
    )
    """Answers to owners that have not called `answers` since."""

    def __post_init__(self) -> None:
        """Start the process that imports the user's code.

        Raises:
            ConfigError: It cannot be imported, or no sandbox works for its code tools.
        """
        self._selector = selectors.DefaultSelector()
        orders, theirs = socketpair()
        self._sockets, passing = socketpair()
        with theirs, passing:
            orders_at, sockets_at = theirs.fileno(), passing.fileno()
            call = f"serve({orders_at}, {sockets_at})"
            program = f"from mindrl.environments.process import serve; {call}"
            self._process = start_guarded(program, orders_at, sockets_at)
        self._orders = Frames(orders)
        orders.settimeout(self.limits.start_seconds)
        try:
            self._orders.send(self.spec.to_json())
            reply = self._orders.receive()
        except (TimeoutError, OSError):
            reply = None
        orders.settimeout(None)
        if reply is None or "ready" not in reply:
            self.close()
            if reply is not None and "refusal" in reply:
                raise ConfigError(reply["refusal"])
            why = (reply or {}).get("error", "the process of the environments did not start")
            raise ConfigError(f"environment_config: {why}")

    def begin(
        self,
        key: Key,
        seed: int,
        row: Mapping[str, Any],
        past: Past | None = None,
        opening: Opening | None = None,
    ) -> None:
        """Begin a conversation; `answers` returns its `Opening`, unless it has a past.

        An empty past means that its `Opening` is known. With `opening` a restored conversation that
        begins with another text has failed.
        """
        assert key not in self._open, "a conversation begins once"
        found = _Conversation(
            key=key,
            seed=seed,
            row=row,
            past=[*(past or ())],
            has_opened=past is not None,
            opening=opening,
        )
        self._open[key] = found
        self._waiting.append(found)

    def is_busy(self, owner: str) -> bool:
        """Return whether an owner will get answers without another call of `act` or `end`."""
        if any(each.is_busy for key, each in self._open.items() if key.owner == owner):
            return True
        if self._has_unread(owner):
            return True
        queued = any(each.key.owner == owner for each in self._waiting)
        return queued and self._running[owner] < self.limits.processes

    def act(self, key: Key, action: Action) -> None:
        """Request the answer to a turn; `answers` returns it later."""
        conversation = self._open[key]
        assert conversation.action is None, "one turn at a time"
        conversation.action, conversation.was_lost = action, False
        conversation.acted_at = time.monotonic()
        self._send_turn(conversation)

    def end(self, key: Key) -> None:
        """End a conversation and its process; an unknown one is ignored."""
        if (conversation := self._open.pop(key, None)) is not None:
            self._stop(conversation)
            with suppress(ValueError):
                self._waiting.remove(conversation)

    def end_all(self, owner: str) -> None:
        """End all conversations of an owner."""
        for key in [each for each in self._open if each.owner == owner]:
            self.end(key)
        self._unread = [each for each in self._unread if each[0].owner != owner]

    def answers(
        self, owner: str, seconds: float
    ) -> list[tuple[Key, Opening | EnvironmentAnswer | Failed]]:
        """Wait up to `seconds` for an answer to an owner if one will come; return all of them."""
        ends = time.monotonic() + seconds
        while True:
            self._start_waiting()
            waits = self.is_busy(owner) and not self._has_unread(owner)
            left = min([ends, *self._deadlines()]) - time.monotonic() if waits else 0.0
            ready = self._selector.select(max(0.0, left)) if self._running.total() else []
            for key, _ in ready:
                self._unread += self._received(key.data)
            now = time.monotonic()
            for each in [*self._open.values()]:
                if each.is_busy and each.ends <= now:
                    self._unread += self._lost(each, "gave no answer in time")
            if self._has_unread(owner) or now >= ends or not self.is_busy(owner):
                found = self._unread
                self._unread = [each for each in found if each[0].owner != owner]
                return [each for each in found if each[0].owner == owner]

    def close(self) -> None:
        """End all processes."""
        self._orders.connection.close()
        self._sockets.close()
        for each in self._open.values():
            if each.frames is not None:
                each.frames.connection.close()
        self._open.clear()
        end_guarded(self._process, _STOP_SECONDS)

    def _has_unread(self, owner: str) -> bool:
        return any(key.owner == owner for key, _ in self._unread)

    def _deadlines(self) -> list[float]:
        return [each.ends for each in self._open.values() if each.is_busy]

    def _start_waiting(self) -> None:
        for conversation in [*self._waiting]:
            if self._running[conversation.key.owner] < self.limits.processes:
                self._waiting.remove(conversation)
                self._start(conversation)

    def _start(self, conversation: _Conversation) -> None:
        """Fork a process for a conversation, and let it begin.

        Raises:
            EnvironmentFailedError: The process that forks them has ended.
        """
        try:
            self._orders.send({"fork": True})
            sent, descriptors, _, _ = recv_fds(self._sockets, PID.size, 1)
        except OSError as error:
            raise EnvironmentFailedError(f"environments cannot be started: {error}") from error
        if not descriptors:
            raise EnvironmentFailedError("the process that starts environments has ended")
        (conversation.pid,) = PID.unpack(sent)
        conversation.frames = Frames(socket(fileno=descriptors[0]), self.limits.answer_bytes)
        conversation.replayed = -1
        self._selector.register(descriptors[0], selectors.EVENT_READ, conversation)
        self._running[conversation.key.owner] += 1
        self._send(conversation, {"seed": conversation.seed, "row": conversation.row})
        conversation.ends = time.monotonic() + self.limits.start_seconds

    def _send_turn(self, conversation: _Conversation) -> None:
        """Send the next turn to a process that waits: of the past, or the new one."""
        if conversation.frames is None or conversation.is_busy or conversation.replayed < 0:
            return
        past = conversation.past
        if conversation.replayed < len(past):
            action: Action | None = past[conversation.replayed][0]
        else:
            action = conversation.action
        if action is not None:
            self._send(conversation, action.to_json())
            conversation.ends = time.monotonic() + self.limits.call_seconds

    def _send(self, conversation: _Conversation, values: Mapping[str, Any]) -> None:
        assert conversation.frames is not None, "it has a process"
        conversation.is_busy = True
        # A process that has ended is found by the end of its connection.
        with suppress(OSError):
            conversation.frames.send(values)

    def _received(self, conversation: _Conversation) -> Iterator[tuple[Key, Any]]:
        """Process what the process of a conversation has sent."""
        assert conversation.frames is not None, "it has a process"
        try:
            arrived = [*conversation.frames.arrived()]
        except ValueError as error:
            yield from self._lost(conversation, f"sent {error}")
            return
        for values in arrived:
            if values is None or not conversation.is_busy:
                yield from self._lost(conversation, "has ended")
                return
            conversation.is_busy = False
            yield from self._answered(conversation, values)

    def _answered(
        self, conversation: _Conversation, values: Mapping[str, Any]
    ) -> Iterator[tuple[Key, Any]]:
        if "error" in values:
            yield conversation.key, Failed(reason=str(values["error"]))
            return
        place, past = conversation.replayed, conversation.past
        conversation.replayed += 1
        if place < 0:
            opening = Opening.of_json(values)
            if conversation.opening is not None and conversation.opening.text != opening.text:
                why = "it began otherwise when it was replayed"
                yield conversation.key, Failed(reason=why)
                return
            conversation.opening = opening
            if not conversation.has_opened:
                conversation.has_opened = True
                yield conversation.key, opening
        else:
            answer = EnvironmentAnswer.of_json(values)
            if place < len(past):
                if answer.fingerprint() != past[place][1]:
                    why = f"turn {place + 1} was answered otherwise when it was replayed"
                    yield conversation.key, Failed(reason=why)
                    return
            else:
                assert conversation.action is not None, "it was asked"
                past.append((conversation.action, answer.fingerprint()))
                conversation.action = None
                yield conversation.key, replace(answer, seconds=_taken(conversation, values))
        self._send_turn(conversation)

    def _lost(self, conversation: _Conversation, why: str) -> Iterator[tuple[Key, Failed]]:
        """Replace a lost process once per turn; a second loss fails the environment."""
        self.lost += 1
        self._stop(conversation)
        if conversation.was_lost:
            yield conversation.key, Failed(reason=f"its process {why}")
            return
        conversation.was_lost = True
        self._waiting.appendleft(conversation)

    def _stop(self, conversation: _Conversation) -> None:
        """Kill the process of a conversation, if it has one."""
        if (frames := conversation.frames) is None:
            return
        self._selector.unregister(frames.connection)
        frames.connection.close()
        conversation.frames, conversation.is_busy = None, False
        self._running[conversation.key.owner] -= 1
        with suppress(OSError):
            self._orders.send({"kill": conversation.pid})


def _taken(conversation: _Conversation, values: Mapping[str, Any]) -> float:
    """Return the seconds from a turn to its answer, which may have waited to be read."""
    began, now = conversation.acted_at, time.monotonic()
    return min(now, max(began, float(values["at"]))) - began
