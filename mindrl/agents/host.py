"""The agents of a run, on its driver: begun, answered, ended and restarted.

Agents run in a process of their own and request answers over HTTP. The run takes these calls, lets
its engines answer them, and replies. If the process ends or hangs, its conversations have failed
and another process starts; if it is lost too before an agent has finished, the run ends.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from mindrl.agents.endpoint import AgentEndpoint
from mindrl.agents.record import Call
from mindrl.agents.routes import AgentRoutes
from mindrl.agents.runner_process import AgentSpec, RunnerProcess
from mindrl.agents.sessions import PendingCall, Session
from mindrl.config.returned_number import returned_number
from mindrl.environments.host import Key
from mindrl.errors import ConfigError, EnvironmentFailedError

_GRACE_SECONDS = 10.0
"""Time to report a conversation's timeout; later the process counts as hung."""


class AgentEnding(NamedTuple):
    """An agent that has finished or failed."""

    key: Key
    reward: float
    """0 if it returned none."""
    calls: tuple[Call, ...]
    """Its answered calls, in order."""
    error: str
    """Why the agent has failed; empty if it has not."""


@dataclass(kw_only=True, eq=False)
class _Conversation:
    session: Session
    number: int
    seed: int
    row: Mapping[str, Any]
    ends: float = 0.0
    """When its time is over; 0 before it has begun."""


class AgentHost:
    """All agents of a run."""

    def __init__(self, spec: AgentSpec, routes: AgentRoutes) -> None:
        """Start the endpoint and the process of the agents.

        Raises:
            ConfigError: The interpreter or the agent cannot be used.
        """
        self.spec, self.sessions = spec, routes.sessions
        self.lost = 0
        """Number of lost processes since the last look."""
        self._numbers = count()
        self._open: dict[Key, _Conversation] = {}
        self._waiting: deque[_Conversation] = deque()
        self._running: Counter[str] = Counter()
        """Number of running agents of each owner."""
        self._endings: list[AgentEnding] = []
        self._losses = 0
        """Processes lost since an agent has finished."""
        self._lost = ""
        """Why the process is lost."""
        self._runner = RunnerProcess(spec, self._arrived)
        self._endpoint = AgentEndpoint(routes)

    def begin(self, key: Key, seed: int, row: Mapping[str, Any]) -> None:
        """Begin the agent of a conversation, or let it wait for others to end."""
        with self.sessions.changed:
            session = self.sessions.begin(key)
            found = _Conversation(session=session, number=next(self._numbers), seed=seed, row=row)
            self._open[key] = found
            self._waiting.append(found)
            self._start_waiting()

    def requests(self, owner: str, seconds: float) -> list[PendingCall]:
        """Return the new calls of an owner's agents, in order of arrival.

        Waits for up to `seconds` for a call or an ending; there may be endings without any call.

        Raises:
            EnvironmentFailedError: The process of the agents was lost again.
        """
        ends = time.monotonic() + seconds
        with self.sessions.changed:
            while True:
                self._replace_lost()
                self._start_waiting()
                found, now = self.sessions.take(owner), time.monotonic()
                if found or now >= ends or any(each.key.owner == owner for each in self._endings):
                    return found
                self.sessions.changed.wait(max(0.0, min([ends, *self._deadlines()]) - now))

    def reply(
        self,
        key: Key,
        call_number: int,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        step: int,
        ending: str,
    ) -> bool:
        """Answer a call; return whether the agent still waits for the answer."""
        return self.sessions.reply(
            key,
            call_number,
            lambda call: sampled_call(call, token_ids, logprobs, step, ending),
        )

    def endings(self, owner: str) -> list[AgentEnding]:
        """Return the agents of an owner that have ended since the last look, in that order."""
        with self.sessions.changed:
            found = [each for each in self._endings if each.key.owner == owner]
            self._endings = [each for each in self._endings if each.key.owner != owner]
            return found

    def end(self, key: Key) -> None:
        """End a conversation without an ending; an unknown one is ignored."""
        with self.sessions.changed:
            if (found := self._open.get(key)) is not None:
                self._runner.send({"cancel": found.number})
                self._close(found)

    def end_all(self, owner: str) -> None:
        """End all conversations of an owner, and forget its endings."""
        with self.sessions.changed:
            for key in [each for each in self._open if each.owner == owner]:
                self.end(key)
            self.endings(owner)

    def is_busy(self, owner: str, keys: Iterable[Key]) -> bool:
        """Return whether one of these agents runs, or one of an owner can begin."""
        with self.sessions.changed:
            if any(key in self._open and self._open[key].ends for key in keys):
                return True
            queued = any(each.session.key.owner == owner for each in self._waiting)
            return queued and self._running[owner] < self.spec.conversations

    def close(self) -> None:
        """End all agents and the endpoint."""
        with self.sessions.changed:
            for found in [*self._open.values()]:
                self._close(found)
        self._runner.close()
        self._endpoint.close()

    def _start_waiting(self) -> None:
        for found in [*self._waiting]:
            owner = found.session.key.owner
            if self._running[owner] >= self.spec.conversations or self._lost:
                continue
            self._waiting.remove(found)
            self._running[owner] += 1
            found.ends = time.monotonic() + self.spec.seconds + _GRACE_SECONDS
            order = {"begin": found.number, "seed": found.seed, "row": found.row}
            address = self._endpoint.base_url(found.session)
            self._runner.send({**order, "base_url": address, "api_key": found.session.secret})

    def _close(self, found: _Conversation) -> tuple[Call, ...]:
        """Forget a conversation; return its calls."""
        key = found.session.key
        del self._open[key]
        if found.ends:
            self._running[key.owner] -= 1
        else:
            self._waiting.remove(found)
        return self.sessions.end(key)

    def _arrived(self, runner: RunnerProcess, values: Any) -> None:
        """Take a result of the process, in the thread that reads them."""
        with self.sessions.changed:
            if runner is not self._runner:
                return
            if values is None:
                self._lost = "has ended"
            else:
                self._finish(values)
            self.sessions.changed.notify_all()

    def _finish(self, values: Mapping[str, Any]) -> None:
        self._losses = 0
        for found in self._open.values():
            if found.number == values["ended"]:
                error = values.get("error") or ""
                calls = self._close(found)
                reward = 0.0
                try:
                    reward = returned_number(values.get("reward") or 0.0)
                except ValueError as problem:
                    error = error or f"the agent {problem}"
                self._endings.append(AgentEnding(found.session.key, reward, calls, error))
                return

    def _deadlines(self) -> list[float]:
        return [each.ends for each in self._open.values() if each.ends]

    def _replace_lost(self) -> None:
        """Restart a process that has ended or hangs; its conversations have failed."""
        if not self._lost and min(self._deadlines(), default=float("inf")) <= time.monotonic():
            self._lost = "hangs"
        if not self._lost:
            return
        why = (
            f"environment_config.agent={self.spec.agent!r}: the process of the agents {self._lost}"
        )
        self._losses += 1
        self.lost += 1
        self._runner.close()
        for found in [each for each in self._open.values() if each.ends]:
            self._endings.append(AgentEnding(found.session.key, 0.0, self._close(found), why))
        if self._losses > 1:
            raise EnvironmentFailedError(f"{why}, for the second time before an agent has finished")
        try:
            self._runner = RunnerProcess(self.spec, self._arrived)
        except ConfigError as error:
            raise EnvironmentFailedError(f"{why} and cannot be restarted: {error}") from error
        self._lost = ""


def sampled_call(
    pending: PendingCall,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    step: int,
    ending: str,
) -> Call:
    """Return a call with the answer of the policy."""
    return Call(
        prompt_ids=pending.prompt_ids,
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        step=step,
        ending=ending,
    )
