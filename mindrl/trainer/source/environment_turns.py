"""Turns of conversations: what a policy wrote goes to its environment, and the answer comes back.

Shapes: N tokens of a response.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from mindrl.batch.conversations import ConversationEnding, Dialogue, Turn
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
        return min(self.longest - length, of_turn - (length - sequence.conversation.next_start))

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
        ending: ConversationEnding = "tokens" if length == self.longest else "turn_tokens"
        turn = Turn(start=conversation.next_start, end=length)
        self.host.end(Key(self.owner, *row))
        return replace(sequence, conversation=conversation.with_turn(turn, length, ending))

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
                conversation = replace(conversation, prompt_ids=prompt_ids)
                return replace(sequence, conversation=conversation)
        if isinstance(answer, Failed):
            self.failures[answer.reason] += 1
            self.host.end(Key(self.owner, *row))
            return replace(sequence, conversation=replace(conversation, ending="failed"))
        return self._with_turn(row, sequence, conversation, answer)

    def _with_turn(
        self,
        row: ResponseKey,
        sequence: OpenSequence,
        conversation: Dialogue,
        answer: EnvironmentAnswer,
    ) -> OpenSequence:
        length = len(sequence.tokens_N)
        start = conversation.next_start
        turn = Turn(
            start=start,
            end=length,
            calls=len(self._action(sequence, start, length).calls),
            reward=answer.reward,
            answer=answer.fingerprint(),
        )
        given, ending = self._given(sequence, answer)
        if ending is None and len(conversation.turns) + 1 == self.config.max_turns:
            given, ending = [], "turns"
        if ending is not None:
            self.host.end(Key(self.owner, *row))
        tokens_N = torch.tensor(given, dtype=torch.int64)
        # All tokens of a turn's answer count as of the step that asked for it.
        step = int(sequence.steps_N[-1])
        more = sequence.with_more(
            tokens_N, torch.zeros(len(given)), step=step, finished=ending in {"done", "turns"}
        )
        conversation = conversation.with_turn(turn, length + len(given), ending)
        return replace(more, conversation=conversation)

    def _given(
        self, sequence: OpenSequence, answer: EnvironmentAnswer
    ) -> tuple[list[int], ConversationEnding | None]:
        """Return the token ids of an answer, and why the conversation ends with it, if it does."""
        is_ended_otherwise = int(sequence.tokens_N[-1]) != self.template.end
        if answer.done or not answer.messages or is_ended_otherwise:
            return [], "done"
        messages = [(message.role, message.text) for message in answer.messages]
        given = self.template.after_turn(messages, self.config.max_result_tokens)
        if len(sequence.tokens_N) + len(given) >= self.longest:
            return [], "tokens"
        return given, None

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
