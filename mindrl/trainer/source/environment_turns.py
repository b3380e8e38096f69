"""Turns of conversations: what a policy wrote goes to its environment, and the answer comes back.

Shapes: N tokens of a response.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mindrl.batch.conversations import (
    ConversationEnding,
    Dialogue,
    MessageRole,
    Restart,
    Turn,
)
from mindrl.batch.prompts import Prompt
from mindrl.environments.host import EnvironmentHost, Key
from mindrl.environments.messages import Action, EnvironmentAnswer, Failed, Opening
from mindrl.environments.tool_calls import TOOL_FORMATS
from mindrl.trainer.source.group import OpenSequence
from mindrl.trainer.source.turns import ConversationTurns, ResponseKey, dialogue_of, with_given


@dataclass(kw_only=True)
class EnvironmentTurns(ConversationTurns):
    """The environments of a pool's conversations."""

    host: EnvironmentHost
    failed_in_turn: dict[ResponseKey, Failed] = field(default_factory=dict, init=False)
    """Conversations whose environment has failed while the policy has the turn."""

    def forget(self) -> None:
        """End all environments."""
        self.host.end_all(self.owner)
        self.waiting.clear()
        self.failed_in_turn.clear()

    def begin(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int) -> None:
        """Let the environment of a conversation begin, or come back with the turns that it had.

        One that comes back takes its place among the processes at once, so that as many others can
        begin as if the run had not been interrupted.
        """
        conversation, key = dialogue_of(sequence), Key(self.owner, *row)
        if not conversation.prompt_ids:
            self.host.begin(key, seed, _row(prompt))
            self.waiting.add(row)
            return
        past = [
            (self._action(sequence, turn.start, turn.end), turn.answer)
            for turn in conversation.turns
        ]
        self.host.begin(key, seed, _row(prompt), past)
        if sequence.finished and len(sequence.tokens_N) > conversation.next_start:
            # The turn had no answer when the run was saved.
            self.drawn(row, sequence, prompt)

    def drawn(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt) -> OpenSequence:
        """Ask the environment if a turn has ended; end the conversation at a limit of tokens."""
        conversation, length = dialogue_of(sequence), len(sequence.tokens_N)
        if (failed := self.failed_in_turn.pop(row, None)) is not None:
            return self.answered(row, sequence, prompt, failed)
        if sequence.finished:
            self.host.act(
                Key(self.owner, *row), self._action(sequence, conversation.next_start, length)
            )
            self.waiting.add(row)
            return sequence
        if self.tokens_left(row, sequence) > 0:
            return sequence
        is_turn = length - conversation.next_start == self.config.max_turn_tokens
        ending: ConversationEnding = "turn_tokens" if is_turn else "tokens"
        turn = Turn(start=conversation.next_start, end=length)
        self.host.end(Key(self.owner, *row))
        return replace(sequence, conversation=conversation.with_turn(turn, length, ending))

    def is_answering(self) -> bool:
        """Return whether any environment computes an answer, or can begin."""
        return self.host.is_busy(self.owner)

    def answers(
        self, seconds: float
    ) -> list[tuple[ResponseKey, Opening | EnvironmentAnswer | Failed]]:
        """Return the answers that arrive within `seconds`, at least one if there is any."""
        found = []
        # Environments that come back have no answer, but are read.
        is_read = self.waiting or self.host.is_busy(self.owner)
        for key, answer in self.host.answers(self.owner, seconds) if is_read else ():
            row = (key.group, key.response)
            if row in self.waiting:
                self.waiting.discard(row)
                found.append((row, answer))
            elif isinstance(answer, Failed):
                self.failed_in_turn[row] = answer
        return found

    def answered(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        prompt: Prompt,
        answer: Opening | EnvironmentAnswer | Failed,
    ) -> OpenSequence:
        """Add what an environment has answered; the policy has the next turn unless it ends."""
        conversation = dialogue_of(sequence)
        if isinstance(answer, Opening):
            prompt_ids = self._prompt_ids(prompt, answer)
            if len(prompt_ids) > self.longest_prompt:
                answer = Failed(
                    reason=f"it begins with {len(prompt_ids)} tokens; "
                    f"rl_config.max_prompt_length={self.longest_prompt}"
                )
            else:
                conversation = replace(conversation, prompt_ids=prompt_ids, opening=answer.text)
                return replace(sequence, conversation=conversation)
        if isinstance(answer, Failed):
            self.host.end(Key(self.owner, *row))
            return self._failed(sequence, answer.reason)
        return self._with_turn(row, sequence, prompt, answer)

    def lost_processes(self) -> int:
        """Return the number of lost processes since the last look."""
        found, self.host.lost = self.host.lost, 0
        return found

    def _with_turn(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        prompt: Prompt,
        answer: EnvironmentAnswer,
    ) -> OpenSequence:
        conversation, length = dialogue_of(sequence), len(sequence.tokens_N)
        start = conversation.next_start
        turn = Turn(
            start=start,
            end=length,
            calls=len(self._action(sequence, start, length).calls),
            reward=answer.reward,
            answer=answer.fingerprint(),
            messages=() if self.template.is_kept else self._messages(answer),
            role=answer.messages[0].role if answer.messages else None,
            seconds=answer.seconds,
        )
        given, ending = list[int](), self._ending(sequence, answer)
        ended = conversation.with_turn(turn, length, ending)
        if ending is None:
            given, ended = self._continued(sequence, ended, prompt, self._messages(answer))
        if ended.ending is not None:
            self.host.end(Key(self.owner, *row))
        more = with_given(sequence, given, finished=ended.ending in {"done", "turns"})
        return replace(more, conversation=ended)

    def _ending(
        self, sequence: OpenSequence, answer: EnvironmentAnswer
    ) -> ConversationEnding | None:
        """Return why a conversation ends with an answer, if it does."""
        conversation, template = dialogue_of(sequence), self.template
        is_ended_otherwise = template.is_kept and int(sequence.tokens_N[-1]) != template.end
        if answer.done or not answer.messages or is_ended_otherwise:
            return "done"
        return "turns" if len(conversation.turns) + 1 == self.config.max_turns else None

    def _messages(self, answer: EnvironmentAnswer) -> tuple[tuple[MessageRole, str], ...]:
        return tuple((message.role, message.text) for message in answer.messages)

    def _continued(
        self,
        sequence: OpenSequence,
        conversation: Dialogue,
        prompt: Prompt,
        messages: Sequence[tuple[MessageRole, str]],
    ) -> tuple[list[int], Dialogue]:
        """Return the token ids that follow the last turn, and the conversation with them."""
        length = len(sequence.tokens_N)
        follows = self._following(sequence, conversation, prompt, messages)
        if isinstance(follows, Restart):
            if len(follows.prompt_ids) < self.longest_prompt + self.longest:
                return [], replace(conversation, restarts=(*conversation.restarts, follows))
        elif length + len(follows) < self.longest:
            return follows, replace(conversation, next_start=length + len(follows))
        return [], replace(conversation, ending="tokens")

    def _following(
        self,
        sequence: OpenSequence,
        conversation: Dialogue,
        prompt: Prompt,
        messages: Sequence[tuple[MessageRole, str]],
    ) -> list[int] | Restart:
        """Return the token ids of messages, or a new prompt if the template rewrites the past."""
        template, given = self.template, None
        if messages[0][0] in template.pieces:
            given = template.after_turn(messages, self.config.max_result_tokens)
        if template.is_kept:
            assert given is not None, "validated: the template has the role"
            return given
        length = len(sequence.tokens_N)
        rendered = self._rendered(sequence, conversation, prompt)
        if given is not None:
            segment = conversation.segments(length)[-1]
            written = sequence.tokens_N[segment.start :].tolist()
            if template.is_same_text([*segment.prompt_ids, *written, *given], rendered):
                return given
        return Restart(start=length, prompt_ids=tuple(rendered))

    def _rendered(
        self, sequence: OpenSequence, conversation: Dialogue, prompt: Prompt
    ) -> list[int]:
        assert prompt.row is not None, "rows are read for environments"
        tokens = sequence.tokens_N.tolist()
        turns = [
            (self.decode(tokens[turn.start : turn.end]), turn.messages)
            for turn in conversation.turns
        ]
        longest = self.config.max_result_tokens
        return self.template.history(
            prompt.row.messages, conversation.opening, turns, longest, prompt.row.tools
        )

    def _action(self, sequence: OpenSequence, start: int, end: int) -> Action:
        text = self.decode(sequence.tokens_N[start:end].tolist())
        return Action(text=text, calls=TOOL_FORMATS[self.config.tool_format](text))

    def _prompt_ids(self, prompt: Prompt, opening: Opening) -> tuple[int, ...]:
        if opening.text is None:
            return prompt.token_ids
        assert prompt.row is not None, "rows are read for environments"
        return tuple(self.template.opening(prompt.row.messages, opening.text, prompt.row.tools))


def _row(prompt: Prompt) -> dict[str, object]:
    assert prompt.row is not None, "rows are read for environments"
    return {**prompt.row.columns}
