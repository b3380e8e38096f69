"""Turns of conversations: what a policy wrote goes to its environment, and the answer comes back.

Shapes: N tokens of a response.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from mindrl.batch.conversations import ConversationEnding, Dialogue, Restart, Turn
from mindrl.batch.prompts import Prompt
from mindrl.config.environment import EnvironmentConfig
from mindrl.data.turn_template import TurnTemplate
from mindrl.environments.host import EnvironmentHost, Key
from mindrl.environments.messages import Action, EnvironmentAnswer, Failed, Opening
from mindrl.environments.tool_calls import TOOL_FORMATS
from mindrl.observability.metrics import Metrics
from mindrl.trainer.source.conversation_metrics import check_failures, conversation_metrics
from mindrl.trainer.source.group import OpenGroup, OpenSequence

ResponseKey = tuple[int, int]
"""Number of a group, and index of a response in it."""


@dataclass(kw_only=True)
class EnvironmentTurns:
    """The environments of a pool's conversations."""

    owner: str
    """Name of the pool with the conversations."""
    config: EnvironmentConfig
    host: EnvironmentHost
    template: TurnTemplate
    decode: Callable[[list[int]], str]
    longest: int
    """Most tokens of a conversation after its prompt."""
    longest_prompt: int
    warn: Callable[[str], None]
    waiting: set[ResponseKey] = field(default_factory=set, init=False)
    """Conversations that wait for their environments."""
    failures: Counter[str] = field(default_factory=Counter, init=False)
    """Failed conversations since the last look, by reason."""

    def forget(self) -> None:
        """End all environments."""
        self.host.end_all(self.owner)
        self.waiting.clear()

    def check(self, groups: Sequence[OpenGroup]) -> Metrics:
        """Return metrics about finished groups, and warn of failed conversations.

        Raises:
            EnvironmentFailedError: Too many have failed.
        """
        reasons, self.failures = self.failures, Counter()
        for line in check_failures(groups, reasons, self.config.max_failed_fraction):
            self.warn(line)
        lost, self.host.lost = float(self.host.lost), 0
        return {**conversation_metrics(groups), "turns/lost_processes": lost}

    def begin(self, row: ResponseKey, prompt: Prompt, seed: int) -> None:
        """Let the environment of a new conversation begin."""
        self.host.begin(Key(self.owner, *row), seed, _row(prompt))
        self.waiting.add(row)

    def tokens_left(self, sequence: OpenSequence) -> int:
        """Return the most tokens that the current turn may still have."""
        assert sequence.conversation is not None, "it has an environment"
        length = len(sequence.tokens_N)
        of_turn = self.config.max_turn_tokens or self.longest
        segment = sequence.conversation.segments(length)[-1]
        of_model = self.longest_prompt + self.longest - len(segment.prompt_ids)
        return min(
            self.longest - length,
            of_turn - (length - sequence.conversation.next_start),
            of_model - (length - segment.start),
        )

    def drawn(
        self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int
    ) -> OpenSequence:
        """Ask the environment if a turn has ended; end the conversation at a limit of tokens."""
        conversation = sequence.conversation
        assert conversation is not None, "it has an environment"
        length = len(sequence.tokens_N)
        if sequence.finished:
            if not self.host.is_open(Key(self.owner, *row)):
                # Begun by an earlier process of the run: the same turns bring it back.
                past = [
                    (self._action(sequence, turn.start, turn.end), turn.answer)
                    for turn in conversation.turns
                ]
                self.host.begin(Key(self.owner, *row), seed, _row(prompt), past)
            self.host.act(
                Key(self.owner, *row), self._action(sequence, conversation.next_start, length)
            )
            self.waiting.add(row)
            return sequence
        if self.tokens_left(sequence) > 0:
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
        for key, answer in self.host.answers(self.owner, seconds) if self.waiting else ():
            self.waiting.discard((key.group, key.response))
            found.append(((key.group, key.response), answer))
        return found

    def answered(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        prompt: Prompt,
        answer: Opening | EnvironmentAnswer | Failed,
    ) -> OpenSequence:
        """Add what an environment has answered; the policy has the next turn unless it ends."""
        conversation = sequence.conversation
        assert conversation is not None, "it has an environment"
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
            self.failures[answer.reason] += 1
            self.host.end(Key(self.owner, *row))
            return replace(sequence, conversation=replace(conversation, ending="failed"))
        return self._with_turn(row, sequence, prompt, answer)

    def _with_turn(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        prompt: Prompt,
        answer: EnvironmentAnswer,
    ) -> OpenSequence:
        conversation, length = sequence.conversation, len(sequence.tokens_N)
        assert conversation is not None, "it has an environment"
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
        tokens_N = torch.tensor(given, dtype=torch.int64)
        # All tokens of a turn's answer count as of the step that asked for it.
        step = int(sequence.steps_N[-1])
        more = sequence.with_more(
            tokens_N, torch.zeros(len(given)), step=step, finished=ended.ending in {"done", "turns"}
        )
        return replace(more, conversation=ended)

    def _ending(
        self, sequence: OpenSequence, answer: EnvironmentAnswer
    ) -> ConversationEnding | None:
        """Return why a conversation ends with an answer, if it does."""
        conversation, template = sequence.conversation, self.template
        assert conversation is not None, "it has an environment"
        is_ended_otherwise = template.is_kept and int(sequence.tokens_N[-1]) != template.end
        if answer.done or not answer.messages or is_ended_otherwise:
            return "done"
        return "turns" if len(conversation.turns) + 1 == self.config.max_turns else None

    def _messages(self, answer: EnvironmentAnswer) -> tuple[tuple[str, str], ...]:
        return tuple((message.role, message.text) for message in answer.messages)

    def _continued(
        self,
        sequence: OpenSequence,
        conversation: Dialogue,
        prompt: Prompt,
        messages: Sequence[tuple[str, str]],
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
        messages: Sequence[tuple[str, str]],
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
            if template.reads_alike([*segment.prompt_ids, *written, *given], rendered):
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
        return self.template.history(prompt.row.messages, conversation.opening, turns, longest)

    def _action(self, sequence: OpenSequence, start: int, end: int) -> Action:
        text = self.decode(sequence.tokens_N[start:end].tolist())
        return Action(text=text, calls=TOOL_FORMATS[self.config.tool_format](text))

    def _prompt_ids(self, prompt: Prompt, opening: Opening) -> tuple[int, ...]:
        if opening.text is None:
            return prompt.token_ids
        assert prompt.row is not None, "rows are read for environments"
        return tuple(self.template.opening(prompt.row.messages, opening.text))


def _row(prompt: Prompt) -> dict[str, object]:
    assert prompt.row is not None, "rows are read for environments"
    return {**prompt.row.columns}
