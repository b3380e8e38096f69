"""Turns of agents that call the policy over HTTP: each call is a turn.

If the prompt of a call begins with all tokens so far, the call continues the sequence; otherwise it
begins a segment. Calls of one conversation are answered one after the other. If some were
concurrent, the turns of a finished conversation are sorted independently of their arrival.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from hashlib import sha256

from mindrl.agents.host import AgentEnding, AgentHost
from mindrl.agents.sessions import PendingCall
from mindrl.batch.conversations import ConversationEnding, Dialogue, Restart, Turn
from mindrl.batch.prompts import Prompt
from mindrl.environments.host import Key
from mindrl.environments.tool_calls import TOOL_FORMATS
from mindrl.trainer.source.group import OpenSequence
from mindrl.trainer.source.parallel_calls import (
    in_fixed_order,
    prompt_before,
    prompt_length_before,
)
from mindrl.trainer.source.turns import ConversationTurns, ResponseKey, dialogue_of, with_given


@dataclass(kw_only=True, eq=False)
class _Agent:
    """State of the agent of an open conversation."""

    left: list[int] = field(default_factory=list)
    """Indices of turns before a resume that the agent has not repeated yet."""
    pending: PendingCall | None = None
    """The call that the policy answers."""
    queued: list[PendingCall] = field(default_factory=list)
    """Calls that wait for the policy."""
    is_parallel: bool = False
    """Whether it has made a call while another one was open."""
    ending: AgentEnding | None = None
    """Ending that arrived while an answer was sampled."""
    since: float = 0.0
    """Time of its last answer."""


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

    def begin(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int) -> None:
        """Begin an agent; after a resume, it gets the same answers again."""
        assert prompt.row is not None, "rows are read for agents"
        messages = [*prompt.row.messages]
        self.host.begin(Key(self.owner, *row), seed, {"prompt": messages, **prompt.row.columns})
        self._agents[row] = _Agent(left=[*range(len(dialogue_of(sequence).turns))])
        self.waiting.add(row)

    def place(self, sequence: OpenSequence) -> int:
        """Return a hash of the call's prompt, its count so far, and the answer's length."""
        conversation, start = dialogue_of(sequence), dialogue_of(sequence).next_start
        prompt_ids = prompt_before(sequence, start)
        # Few prompts of a conversation have the same length.
        alike = (
            turn.start
            for turn in conversation.turns
            if prompt_length_before(sequence, turn.start) == len(prompt_ids)
        )
        same = sum(prompt_before(sequence, each) == prompt_ids for each in alike)
        drawn = len(sequence.tokens_N) - start
        digest = sha256(f"{prompt_ids}/{same}/{drawn}".encode()).digest()
        return 1 + int.from_bytes(digest[:7])

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
        """If the turn has ended, send it as the answer and take the next call."""
        sequence = self._marked(row, sequence)
        conversation, length = dialogue_of(sequence), len(sequence.tokens_N)
        if not sequence.finished and self.tokens_left(row, sequence) > 0:
            return sequence
        start = conversation.next_start
        text = self.decode(sequence.tokens_N[start:].tolist())
        calls = len(TOOL_FORMATS[self.config.tool_format](text))
        turn = Turn(start=start, end=length, calls=calls)
        answered = replace(sequence, conversation=conversation.with_turn(turn, length, None))
        if not self._reply(row, answered, turn, is_cut=not sequence.finished):
            answered = self._without_call(sequence)
        return self._next(row, answered)

    def is_answering(self) -> bool:
        """Return whether an agent works, or can begin."""
        rows = [Key(self.owner, *row) for row in self.waiting]
        return self.host.is_busy(self.owner, rows)

    def answers(self, seconds: float) -> list[tuple[ResponseKey, PendingCall | AgentEnding]]:
        """Return the calls and endings that arrive within `seconds`."""
        found: list[tuple[ResponseKey, PendingCall | AgentEnding]] = []
        for call in self.host.requests(self.owner, seconds) if self.waiting else ():
            row = (call.key.group, call.key.response)
            self._agents[row].is_parallel |= call.overlaps
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
        """Return the number of processes lost since the last call."""
        found, self.host.lost = self.host.lost, 0
        return found

    def _called(self, row: ResponseKey, sequence: OpenSequence, call: PendingCall) -> OpenSequence:
        sequence = self._marked(row, sequence)
        conversation, agent = dialogue_of(sequence), self._agents[row]
        prompt_ids = call.prompt_ids
        if (starts := self._called_before(row, sequence)) is not None:
            return self._called_again(row, sequence, call, starts)
        agent.pending = call
        given, conversation = self._continued(sequence, conversation, prompt_ids)
        if conversation.turns:
            # Shown to people: the agent's new tokens, or a whole prompt that begins a segment.
            text = self.decode([*(given or prompt_ids)])
            last = self._with_seconds(row, conversation.turns[-1])
            last = replace(last, role="user", messages=(("user", text),))
            conversation = replace(conversation, turns=(*conversation.turns[:-1], last))
        if conversation.ending is not None:
            ended = replace(sequence, conversation=conversation)
            return self._over(row, ended, conversation.ending)
        more = with_given(sequence, given, finished=False) if given else sequence
        return replace(more, conversation=conversation)

    def _continued(
        self, sequence: OpenSequence, conversation: Dialogue, prompt_ids: tuple[int, ...]
    ) -> tuple[tuple[int, ...], Dialogue]:
        """Return the tokens between two turns, and the conversation, extended or ended."""
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

    def _marked(self, row: ResponseKey, sequence: OpenSequence) -> OpenSequence:
        """Mark the conversation of an agent with concurrent calls; a checkpoint keeps the mark."""
        if not self._agents[row].is_parallel:
            return sequence
        return replace(sequence, conversation=replace(dialogue_of(sequence), is_parallel=True))

    def _next(self, row: ResponseKey, sequence: OpenSequence) -> OpenSequence:
        """Take the next queued call, or wait for one."""
        agent, starts = self._agents[row], self._called_before(row, sequence)
        known = {prompt_before(sequence, start) for start in starts or ()}
        ready = [each for each in agent.queued if starts is None or each.prompt_ids in known]
        if ready:
            call = min(ready, key=lambda each: (len(each.prompt_ids), each.prompt_ids))
            agent.queued.remove(call)
            return self._called(row, sequence, call)
        self.waiting.add(row)
        return sequence if agent.ending is None else self._ended(row, sequence, agent.ending)

    def _called_before(self, row: ResponseKey, sequence: OpenSequence) -> list[int] | None:
        """Return where the answer starts to each call that the agent must repeat after a resume.

        None if no such calls are left.
        """
        conversation, left = dialogue_of(sequence), self._agents[row].left
        if left:
            due = left if conversation.is_parallel else left[:1]
            return [conversation.turns[at].start for at in due]
        is_called = _is_called(conversation, len(sequence.tokens_N))
        return [conversation.next_start] if is_called else None

    def _called_again(
        self, row: ResponseKey, sequence: OpenSequence, call: PendingCall, starts: list[int]
    ) -> OpenSequence:
        """Send an answer from before the resume again, or let the policy complete it.

        The conversation fails if its agent makes another call than before the resume. An agent
        with concurrent calls may make them in another order.
        """
        agent, conversation = self._agents[row], dialogue_of(sequence)
        same = [start for start in starts if prompt_before(sequence, start) == call.prompt_ids]
        if not same and conversation.is_parallel:
            agent.queued.append(call)
            self.waiting.add(row)
            return sequence
        if not same:
            self._close(row)
            return self._failed(sequence, "an agent made another call when the run was resumed")
        agent.pending = call
        if not agent.left:
            return sequence
        (at, *_) = [at for at in agent.left if conversation.turns[at].start == same[0]]
        turn = conversation.turns[at]
        if self._reply(row, sequence, turn, is_cut=self._is_cut(sequence, turn)):
            agent.left.remove(at)
        return self._next(row, sequence)

    def _is_cut(self, sequence: OpenSequence, turn: Turn) -> bool:
        return int(sequence.tokens_N[turn.end - 1]) != self.template.end

    def _without_call(self, sequence: OpenSequence) -> OpenSequence:
        """Return a conversation as it was before its last call, which is not a turn yet."""
        conversation = dialogue_of(sequence)
        if not conversation.turns:
            none = Dialogue(is_parallel=conversation.is_parallel)
            return OpenSequence.started(sequence.sample, none)
        last = replace(conversation.turns[-1], role=None, messages=())
        kept = slice(last.end)
        conversation = replace(
            conversation,
            turns=(*conversation.turns[:-1], last),
            restarts=tuple(each for each in conversation.restarts if each.start < last.end),
            next_start=last.end,
        )
        return replace(
            sequence,
            tokens_N=sequence.tokens_N[kept],
            logprobs_N=sequence.logprobs_N[kept],
            steps_N=sequence.steps_N[kept],
            finished=not self._is_cut(sequence, last),
            conversation=conversation,
        )

    def _reply(self, row: ResponseKey, sequence: OpenSequence, turn: Turn, *, is_cut: bool) -> bool:
        """Send the answer to the pending call; return whether the agent waits for it."""
        agent, chosen = self._agents[row], slice(turn.start, turn.end)
        assert agent.pending is not None, "it has called"
        is_awaited = self.host.reply(
            agent.pending.key,
            agent.pending.call_number,
            sequence.tokens_N[chosen].tolist(),
            sequence.logprobs_N[chosen].tolist(),
            int(sequence.steps_N[turn.end - 1]),
            "length" if is_cut else "stop",
        )
        agent.pending, agent.since = None, time.monotonic()
        return is_awaited

    def _ended(self, row: ResponseKey, sequence: OpenSequence, ending: AgentEnding) -> OpenSequence:
        """End a conversation with its agent; the reward belongs to the last turn."""
        conversation = dialogue_of(sequence)
        error = ending.error or ("" if conversation.turns else "an agent ended without an answer")
        if not error and self._agents[row].left:
            error = "an agent made fewer calls when the run was resumed"
        if error:
            self._close(row)
            return self._failed(sequence, error)
        last = self._with_seconds(row, conversation.turns[-1])
        conversation = replace(conversation, turns=(*conversation.turns[:-1], last))
        sequence = replace(sequence, conversation=conversation)
        return self._over(row, sequence, "done", reward=ending.reward)

    def _with_seconds(self, row: ResponseKey, turn: Turn) -> Turn:
        return replace(turn, seconds=time.monotonic() - self._agents[row].since)

    def _over(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        ending: ConversationEnding,
        *,
        reward: float = 0.0,
    ) -> OpenSequence:
        """End a conversation; the reward is that of the last turn in its final order."""
        self._close(row)
        if dialogue_of(sequence).is_parallel:
            sequence = in_fixed_order(sequence, self.decode)
        conversation = replace(dialogue_of(sequence), ending=ending)
        if conversation.turns:
            last = replace(conversation.turns[-1], reward=reward)
            conversation = replace(conversation, turns=(*conversation.turns[:-1], last))
        finished = sequence.finished and ending != "tokens"
        return replace(sequence, conversation=conversation, finished=finished)

    def _close(self, row: ResponseKey) -> None:
        self.host.end(Key(self.owner, *row))
        self._agents.pop(row, None)
        self.waiting.discard(row)


def _is_called(conversation: Dialogue, length: int) -> bool:
    """Return whether the answer to a call of a conversation is missing or incomplete."""
    start = conversation.next_start
    if not conversation.turns:
        return bool(conversation.prompt_ids)
    is_anew = any(each.start == start for each in conversation.restarts)
    return length > start or start > conversation.turns[-1].end or is_anew
