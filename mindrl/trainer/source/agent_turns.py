"""Turns of agents that call the policy over HTTP: each call is a turn.

A call whose prompt begins with all tokens so far continues the sequence; any other begins a
segment. Calls of one conversation are answered one after the other.
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mindrl.agents.host import AgentEnding, AgentHost
from mindrl.agents.sessions import PendingCall
from mindrl.batch.conversations import ConversationEnding, Dialogue, Restart, Turn
from mindrl.batch.prompts import Prompt
from mindrl.environments.host import Key
from mindrl.environments.tool_calls import TOOL_FORMATS
from mindrl.trainer.source.group import OpenSequence
from mindrl.trainer.source.turns import ConversationTurns, ResponseKey, dialogue_of, with_given


@dataclass(kw_only=True, eq=False)
class _Agent:
    """What is known of the agent of an open conversation."""

    answered: int = 0
    """Number of turns that it has."""
    pending: PendingCall | None = None
    """The call that the policy answers."""
    queued: deque[PendingCall] = field(default_factory=deque)
    """Further calls."""
    ending: AgentEnding | None = None
    """Arrived while an answer was sampled."""
    since: float = 0.0
    """When it got its last answer."""


@dataclass(kw_only=True)
class AgentTurns(ConversationTurns):
    """The agents of a pool's conversations."""

    host: AgentHost
    _agents: dict[ResponseKey, _Agent] = field(
        default_factory=lambda: defaultdict(_Agent), init=False
    )

    def forget(self) -> None:
        """End all agents."""
        self.host.end_all(self.owner)
        self.waiting.clear()
        self._agents.clear()

    def begin(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int) -> None:  # noqa: ARG002
        """Begin an agent. One of an earlier process of the run gets the same answers again."""
        assert prompt.row is not None, "rows are read for agents"
        messages = [*prompt.row.messages]
        self.host.begin(Key(self.owner, *row), seed, {"prompt": messages, **prompt.row.columns})
        self._agents[row] = _Agent()
        self.waiting.add(row)

    def tokens_left(self, row: ResponseKey, sequence: OpenSequence) -> int:
        """Return the most tokens that the answer to the current call may still have."""
        left, call = super().tokens_left(row, sequence), self._agents[row].pending
        if call is None:
            return left
        drawn = len(sequence.tokens_N) - dialogue_of(sequence).next_start
        return min(left, call.max_tokens - drawn)

    def drawn(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        prompt: Prompt,  # noqa: ARG002
    ) -> OpenSequence:
        """Answer the call if the turn has ended; take the next one."""
        conversation, length = dialogue_of(sequence), len(sequence.tokens_N)
        if not sequence.finished and self.tokens_left(row, sequence) > 0:
            return sequence
        agent, start = self._agents[row], conversation.next_start
        text = self.decode(sequence.tokens_N[start:].tolist())
        calls = len(TOOL_FORMATS[self.config.tool_format](text))
        turn = Turn(start=start, end=length, calls=calls)
        sequence = replace(sequence, conversation=conversation.with_turn(turn, length, None))
        self._reply(row, sequence, turn, is_cut=not sequence.finished)
        if agent.queued:
            return self._called(row, sequence, agent.queued.popleft())
        self.waiting.add(row)
        return sequence if agent.ending is None else self._ended(row, sequence, agent.ending)

    def is_answering(self) -> bool:
        """Return whether an agent works, or can begin."""
        rows = [Key(self.owner, *row) for row in self.waiting]
        return self.host.is_busy(self.owner, rows)

    def answers(self, seconds: float) -> list[tuple[ResponseKey, PendingCall | AgentEnding]]:
        """Return the calls and endings that arrive within `seconds`."""
        found: list[tuple[ResponseKey, PendingCall | AgentEnding]] = []
        for call in self.host.requests(self.owner, seconds) if self.waiting else ():
            row = (call.key.group, call.key.response)
            if row in self.waiting:
                self.waiting.discard(row)
                found.append((row, call))
            else:
                self._agents[row].queued.append(call)
        for ending in self.host.endings(self.owner):
            row = (ending.key.group, ending.key.response)
            self._agents[row].queued.clear()
            if row in self.waiting:
                self.waiting.discard(row)
                found.append((row, ending))
            else:
                self._agents[row].ending = ending
        return found

    def answered(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        prompt: Prompt,  # noqa: ARG002
        answer: PendingCall | AgentEnding,
    ) -> OpenSequence:
        """Let the policy answer a call, or end the conversation."""
        if isinstance(answer, AgentEnding):
            return self._ended(row, sequence, answer)
        return self._called(row, sequence, answer)

    def lost_processes(self) -> int:
        """Return the number of lost processes since the last look."""
        found, self.host.lost = self.host.lost, 0
        return found

    def _called(self, row: ResponseKey, sequence: OpenSequence, call: PendingCall) -> OpenSequence:
        conversation, agent = dialogue_of(sequence), self._agents[row]
        length, prompt_ids = len(sequence.tokens_N), call.prompt_ids
        agent.pending = call
        if agent.answered < len(conversation.turns):
            return self._repeated(row, sequence, conversation.turns[agent.answered])
        if _is_called(conversation, length):
            # It was called before the run was resumed.
            return self._checked(row, sequence, conversation.next_start, prompt_ids)
        given, conversation = self._continued(sequence, conversation, prompt_ids)
        if conversation.turns:
            # For people: what the agent has sent, or all of it if it begins anew.
            text = self.decode([*(given or prompt_ids)])
            last = self._with_seconds(row, conversation.turns[-1])
            last = replace(last, role="user", messages=(("user", text),))
            conversation = replace(conversation, turns=(*conversation.turns[:-1], last))
        if conversation.ending is not None:
            return self._over(row, sequence, conversation, conversation.ending)
        more = with_given(sequence, given, finished=False) if given else sequence
        return replace(more, conversation=conversation)

    def _continued(
        self, sequence: OpenSequence, conversation: Dialogue, prompt_ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Dialogue]:
        """Return the tokens between two turns, and the conversation with them or at its end."""
        length, first = len(sequence.tokens_N), not conversation.prompt_ids
        segment = conversation.segments(length)[-1]
        whole = (*segment.prompt_ids, *sequence.tokens_N[segment.start :].tolist())
        is_prefix = not first and prompt_ids[: len(whole)] == whole
        given = prompt_ids[len(whole) :] if is_prefix else ()
        is_full = len(prompt_ids) >= self.longest_prompt + self.longest
        if is_full or length + len(given) >= self.longest:
            return (), replace(conversation, ending="tokens")
        if len(conversation.turns) == self.config.max_turns:
            return (), replace(conversation, ending="turns")
        if first:
            return (), replace(conversation, prompt_ids=prompt_ids)
        if not is_prefix:
            restart = Restart(start=length, prompt_ids=prompt_ids)
            conversation = replace(conversation, restarts=(*conversation.restarts, restart))
        return given, replace(conversation, next_start=length + len(given))

    def _repeated(self, row: ResponseKey, sequence: OpenSequence, turn: Turn) -> OpenSequence:
        """Give the answer of an earlier process of the run again."""
        call = self._agents[row].pending
        assert call is not None, "it has called"
        sequence = self._checked(row, sequence, turn.start, call.prompt_ids)
        if dialogue_of(sequence).ending is None:
            last = int(sequence.tokens_N[turn.end - 1])
            self._reply(row, sequence, turn, is_cut=last != self.template.end)
            self.waiting.add(row)
        return sequence

    def _checked(
        self, row: ResponseKey, sequence: OpenSequence, start: int, prompt_ids: Sequence[int]
    ) -> OpenSequence:
        """Let a conversation fail if its agent makes another call than before the resume."""
        segments = dialogue_of(sequence).segments(len(sequence.tokens_N))
        segment = next(each for each in reversed(segments) if each.start <= start)
        before = (*segment.prompt_ids, *sequence.tokens_N[segment.start : start].tolist())
        if tuple(prompt_ids) == before:
            return sequence
        self._close(row)
        return self._failed(sequence, "an agent made another call when the run was resumed")

    def _reply(self, row: ResponseKey, sequence: OpenSequence, turn: Turn, *, is_cut: bool) -> None:
        agent, chosen = self._agents[row], slice(turn.start, turn.end)
        assert agent.pending is not None, "it has called"
        self.host.reply(
            agent.pending.key,
            agent.pending.call_number,
            sequence.tokens_N[chosen].tolist(),
            sequence.logprobs_N[chosen].tolist(),
            int(sequence.steps_N[turn.end - 1]),
            "length" if is_cut else "stop",
        )
        agent.pending, agent.since = None, time.monotonic()
        agent.answered += 1

    def _ended(self, row: ResponseKey, sequence: OpenSequence, ending: AgentEnding) -> OpenSequence:
        """End a conversation with its agent; the reward belongs to the last turn."""
        conversation = dialogue_of(sequence)
        error = ending.error or ("" if conversation.turns else "an agent ended without a call")
        if not error and self._agents[row].answered < len(conversation.turns):
            error = "an agent made fewer calls when the run was resumed"
        if error:
            self._close(row)
            return self._failed(sequence, error)
        last = replace(self._with_seconds(row, conversation.turns[-1]), reward=ending.reward)
        conversation = replace(conversation, turns=(*conversation.turns[:-1], last))
        return self._over(row, sequence, conversation, "done")

    def _with_seconds(self, row: ResponseKey, turn: Turn) -> Turn:
        return replace(turn, seconds=time.monotonic() - self._agents[row].since)

    def _over(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        conversation: Dialogue,
        ending: ConversationEnding,
    ) -> OpenSequence:
        self._close(row)
        finished = sequence.finished and ending != "tokens"
        conversation = replace(conversation, ending=ending)
        return replace(sequence, conversation=conversation, finished=finished)

    def _close(self, row: ResponseKey) -> None:
        self.host.end(Key(self.owner, *row))
        self._agents.pop(row, None)
        self.waiting.discard(row)


def _is_called(conversation: Dialogue, length: int) -> bool:
    """Return whether a call of a conversation has no answer yet, or a part of one."""
    start = conversation.next_start
    if not conversation.turns:
        return bool(conversation.prompt_ids)
    is_anew = any(each.start == start for each in conversation.restarts)
    return length > start or start > conversation.turns[-1].end or is_anew
