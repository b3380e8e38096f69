"""Sessions of conversations: calls that wait for the policy, and those that it has answered.

Threads of the HTTP server wait in `Sessions.call`; the thread of the run takes calls and replies.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Event
from typing import NamedTuple

from mindrl.agents.record import Call
from mindrl.environments.host import Key

_REMEMBERED = 10_000
"""Number of ended sessions that answer calls by 410 instead of 404."""


class RefusedError(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, text: str, *, param: str | None = None, code: str = "") -> None:
        super().__init__(text)
        self.status, self.param, self.code = status, param, code or None


class PendingCall(NamedTuple):
    """A call that waits for the policy."""

    key: Key
    call_number: int
    """Counted from 0 in its session, in order of arrival."""
    prompt_ids: tuple[int, ...]
    max_tokens: int
    overlaps: bool = False
    """Whether another call of its session was open when it arrived."""


@dataclass(eq=False)
class _OpenCall:
    pending: PendingCall
    is_awaited: Callable[[], bool]
    arrived: Event = field(default_factory=Event)
    answer: Call | None = None
    """None if the session ended before an answer."""


@dataclass(kw_only=True, eq=False)
class Session:
    """The calls of one conversation."""

    key: Key
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    """Part of its address."""
    secret: str = field(default_factory=secrets.token_urlsafe)
    """Its API key."""
    turns: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Token ids up to the end of each chat answer, by the fingerprint of its messages."""
    recorded: dict[int, Call] = field(default_factory=dict)
    """Answered calls, by number, without answers whose client had gone."""
    open: dict[int, _OpenCall] = field(default_factory=dict)
    started: int = 0
    """Number of calls."""
    has_ended: bool = False

    def calls(self) -> tuple[Call, ...]:
        """Return the answered calls in the order of their numbers."""
        return tuple(self.recorded[number] for number in sorted(self.recorded))


class Sessions:
    """All sessions of a run, for several threads."""

    def __init__(self, max_calls: int) -> None:
        """Set the most calls of a session."""
        self.changed = Condition()
        """Notified of new calls. Its lock protects all state of this room."""
        self._max_calls = max_calls
        self._by_name: dict[str, Session] = {}
        self._by_key: dict[Key, Session] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        """Secrets of ended sessions, by name."""
        self._pending: list[PendingCall] = []
        """Calls that the run has not taken yet."""

    def begin(self, key: Key) -> Session:
        """Open the session of a conversation."""
        with self.changed:
            assert key not in self._by_key, "a conversation begins once"
            session = Session(key=key)
            self._by_name[session.name] = self._by_key[key] = session
            return session

    def find(self, name: str, secret: str) -> Session:
        """Return an open session.

        Raises:
            RefusedError: No session has this name, the secret is wrong, or the session has ended.
        """
        with self.changed:
            session = self._by_name.get(name)
            wanted = self._ended.get(name) if session is None else session.secret
        if wanted is None:
            raise RefusedError(404, f"no session {name!r}", code="session_not_found")
        if not secrets.compare_digest(wanted.encode(), secret.encode()):
            text = "the API key is missing or is not that of the session"
            raise RefusedError(401, text, code="invalid_api_key")
        if session is None:
            raise _ended()
        return session

    def call(
        self,
        session: Session,
        prompt_ids: tuple[int, ...],
        max_tokens: int,
        *,
        is_awaited: Callable[[], bool],
    ) -> tuple[int, Call]:
        """Wait for the policy's answer; return it, with the number of the call.

        `is_awaited` returns whether the client is still connected; any thread may call it.

        Raises:
            RefusedError: The session has ended, or has too many calls.
        """
        with self.changed:
            if session.has_ended:
                raise _ended()
            if session.started >= self._max_calls:
                text = f"the session has {self._max_calls} calls, which is its limit"
                raise RefusedError(400, text, code="too_many_calls")
            number, overlaps = session.started, bool(session.open)
            pending = PendingCall(session.key, number, prompt_ids, max_tokens, overlaps)
            session.started += 1
            waiting = session.open[pending.call_number] = _OpenCall(pending, is_awaited)
            self._pending.append(pending)
            self.changed.notify_all()
        waiting.arrived.wait()
        with self.changed:
            if waiting.answer is None or session.has_ended:
                raise _ended()
            return pending.call_number, waiting.answer

    def take(self, owner: str) -> list[PendingCall]:
        """Remove and return the calls of an owner's sessions that it has not taken."""
        with self.changed:
            found = [each for each in self._pending if each.key.owner == owner]
            self._pending = [each for each in self._pending if each.key.owner != owner]
            return found

    def reply(self, key: Key, call_number: int, sampled: Callable[[PendingCall], Call]) -> bool:
        """Record the answer to a call, and send it; return whether its client waits for it.

        If not, or if the session has ended, the agent never sees the answer: it is not recorded.
        """
        with self.changed:
            session = self._by_key.get(key)
            if session is None or (waiting := session.open.pop(call_number, None)) is None:
                return False
            waiting.answer = sampled(waiting.pending)
            if is_awaited := waiting.is_awaited():
                session.recorded[call_number] = waiting.answer
            waiting.arrived.set()
            return is_awaited

    def end(self, key: Key) -> tuple[Call, ...]:
        """End a session and refuse its open calls; return its answered calls."""
        with self.changed:
            session = self._by_key.pop(key, None)
            if session is None:
                return ()
            del self._by_name[session.name]
            session.has_ended = True
            self._ended[session.name] = session.secret
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
            self._pending = [each for each in self._pending if each.key != key]
            for waiting in session.open.values():
                waiting.arrived.set()
            session.open.clear()
            return session.calls()


def _ended() -> RefusedError:
    return RefusedError(410, "the session has ended", code="session_ended")
