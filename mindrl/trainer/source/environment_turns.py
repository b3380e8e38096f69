"""Turns of conversations: an environment answers each text that the policy writes.

Shapes: N tokens of a response.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from mindrl.batch.conversations import (
    ConversationEnding,
    Dialogue,
    MessageRole,
    Restart,
    Turn,
)
from mindrl.batch.prompts import PlacedImage, Prompt
from mindrl.data.row_images import KeptImage, RowImages
from mindrl.environments.host import EnvironmentHost, Key
from mindrl.environments.messages import (
    Action,
    EnvironmentAnswer,
    EnvironmentMessage,
    Failed,
    GivenPicture,
    Opening,
)
from mindrl.environments.tool_calls import TOOL_FORMATS
from mindrl.errors import DataError
from mindrl.trainer.source.group import OpenSequence
from mindrl.trainer.source.turns import ConversationTurns, ResponseKey, dialogue_of, with_given


class _Following(NamedTuple):
    """Tokens and pictures that follow a turn of the policy in its sequence."""

    token_ids: Sequence[int]
    images: tuple[PlacedImage, ...] = ()


@dataclass(kw_only=True)
class EnvironmentTurns(ConversationTurns):
    """The environments of a pool's conversations."""

    host: EnvironmentHost
    images: RowImages | None = None
    """Store of the environments' pictures. None for a text model."""
    failed_in_turn: dict[ResponseKey, Failed] = field(default_factory=dict, init=False)
    """Failures of environments while the policy has the turn, by conversation."""
    ended: dict[ResponseKey, OpenSequence] = field(default_factory=dict, init=False)
    """Conversations that a limit has ended, and that wait for their reward."""

    def forget(self) -> None:
        """End all environments."""
        self.host.end_all(self.owner)
        self.waiting.clear()
        self.failed_in_turn.clear()
        self.ended.clear()

    def begin(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt, seed: int) -> None:
        """Start the environment of a conversation, or restore it with its earlier turns.

        A restored environment occupies a process at once, so that as many others can begin as if
        the run had not been interrupted.
        """
        conversation, key = dialogue_of(sequence), Key(self.owner, *row)
        if not conversation.prompt_ids:
            self.host.begin(key, seed, self._row(prompt))
            self.waiting.add(row)
            return
        past = [
            (self._action(sequence, turn.start, turn.end), turn.answer)
            for turn in conversation.turns
        ]
        opening = Opening(text=conversation.opening)
        self.host.begin(key, seed, self._row(prompt), past, opening)
        is_cut = self.tokens_left(row, sequence) <= 0
        if len(sequence.tokens_N) > conversation.next_start and (sequence.finished or is_cut):
            # The turn had no answer, or the conversation no reward, when the run was saved.
            self.drawn(row, sequence, prompt)

    def drawn(self, row: ResponseKey, sequence: OpenSequence, prompt: Prompt) -> OpenSequence:
        """Send a complete turn to the environment; end the conversation at a token limit."""
        conversation, length = dialogue_of(sequence), len(sequence.tokens_N)
        if (failed := self.failed_in_turn.pop(row, None)) is not None:
            return self.answered(row, sequence, prompt, failed)
        if sequence.finished:
            action = self._action(sequence, conversation.next_start, length)
            is_last = len(conversation.turns) + 1 == self.config.max_turns
            self.host.act(Key(self.owner, *row), replace(action, is_last=is_last))
            self.waiting.add(row)
            return sequence
        if self.tokens_left(row, sequence) > 0:
            return sequence
        is_turn = length - conversation.next_start == self.config.max_turn_tokens
        ending: ConversationEnding = "turn_tokens" if is_turn else "tokens"
        turn = Turn(start=conversation.next_start, end=length)
        ended = replace(sequence, conversation=conversation.with_turn(turn, length, ending))
        return self._without_reward(row, sequence, ended)

    def is_answering(self) -> bool:
        """Return whether any environment computes an answer, or can begin."""
        return self.host.is_busy(self.owner)

    def answers(
        self, seconds: float
    ) -> list[tuple[ResponseKey, Opening | EnvironmentAnswer | Failed]]:
        """Return the answers that arrive within `seconds`, at least one if there is any."""
        found = []
        # Restored environments send no answer, but may fail: read them too.
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
        """Add an environment's answer; the policy has the next turn unless the answer is final."""
        ended = self.ended.pop(row, None)
        try:
            if isinstance(answer, Opening):
                return replace(sequence, conversation=self._opened(sequence, prompt, answer))
            if isinstance(answer, EnvironmentAnswer) and ended is not None:
                return self._with_reward(row, ended, answer.reward)
            if isinstance(answer, EnvironmentAnswer):
                return self._with_turn(row, sequence, prompt, answer)
            reason = answer.reason
        except DataError as error:
            reason = str(error)
        self.host.end(Key(self.owner, *row))
        return self._failed(sequence, reason)

    def lost_processes(self) -> int:
        """Return the number of lost processes since the last look."""
        found, self.host.lost = self.host.lost, 0
        return found

    def _opened(self, sequence: OpenSequence, prompt: Prompt, opening: Opening) -> Dialogue:
        """Return a conversation with its own prompt.

        Raises:
            DataError: The prompt is too long, or a picture is refused.
        """
        conversation = dialogue_of(sequence)
        own = _Following(prompt.token_ids, prompt.images)
        if opening.text is not None:
            assert prompt.row is not None, "rows are read for environments"
            shown = [KeptImage(each.number, each.tokens) for each in prompt.images]
            if self._is_over(len(shown), len(opening.pictures)):
                raise DataError(
                    f"it begins with {len(shown) + len(opening.pictures)} pictures; "
                    f"data_config.images.max_per_prompt={self._most_pictures}"
                )
            shown += self._kept(opening.pictures)
            messages, tools = prompt.row.messages, prompt.row.tools
            rendered = self.template.opening(messages, opening.pieces, tools)
            own = self._placed(rendered, shown, 0)
        if len(own.token_ids) > self.longest_prompt:
            raise DataError(
                f"it begins with {len(own.token_ids)} tokens; "
                f"rl_config.max_prompt_length={self.longest_prompt}"
            )
        return replace(
            conversation,
            prompt_ids=tuple(own.token_ids),
            images=own.images,
            opening=opening.text,
        )

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
        given: Sequence[int] = ()
        ending = self._ending(sequence, answer)
        ended = conversation.with_turn(turn, length, ending)
        if ending is None:
            given, ended = self._continued(sequence, ended, prompt, answer.messages)
        more = with_given(sequence, given, finished=ended.ending in {"done", "turns"})
        more = replace(more, conversation=ended)
        if ended.ending is None:
            return more
        if answer.done or len(ended.turns) == self.config.max_turns:
            return self._with_reward(row, more, 0.0)
        return self._without_reward(row, sequence, more)

    def _without_reward(
        self, row: ResponseKey, sequence: OpenSequence, ended: OpenSequence
    ) -> OpenSequence:
        """Ask for the reward of a conversation that a limit has ended; it stays open until then."""
        self.ended[row] = ended
        self.host.act(Key(self.owner, *row), Action(text="", is_over=True))
        self.waiting.add(row)
        return sequence

    def _with_reward(self, row: ResponseKey, ended: OpenSequence, reward: float) -> OpenSequence:
        """End the environment of a conversation; its last turn gets a reward in addition."""
        self.host.end(Key(self.owner, *row))
        conversation = dialogue_of(ended)
        last = conversation.turns[-1]
        last = replace(last, reward=last.reward + reward)
        turns = (*conversation.turns[:-1], last)
        return replace(ended, conversation=replace(conversation, turns=turns))

    def _ending(
        self, sequence: OpenSequence, answer: EnvironmentAnswer
    ) -> ConversationEnding | None:
        """Return why a conversation ends with an answer, if it does."""
        conversation, template = dialogue_of(sequence), self.template
        is_ended_otherwise = template.is_kept and int(sequence.tokens_N[-1]) != template.end
        if answer.done or not answer.messages or is_ended_otherwise:
            return "done"
        if len(conversation.turns) + 1 == self.config.max_turns:
            return "turns"
        given = sum(len(message.pictures) for message in answer.messages)
        return "pictures" if self._is_over(len(conversation.images), given) else None

    def _messages(self, answer: EnvironmentAnswer) -> tuple[tuple[MessageRole, str], ...]:
        return tuple((message.role, message.text) for message in answer.messages)

    def _continued(
        self,
        sequence: OpenSequence,
        conversation: Dialogue,
        prompt: Prompt,
        messages: Sequence[EnvironmentMessage],
    ) -> tuple[Sequence[int], Dialogue]:
        """Return the token ids that follow the last turn, and the conversation with them."""
        length = len(sequence.tokens_N)
        follows = self._following(sequence, conversation, prompt, messages)
        if isinstance(follows, Restart):
            fits = len(follows.prompt_ids) < self.longest_prompt + self.longest
            if fits and length < self.longest:
                return [], replace(conversation, restarts=(*conversation.restarts, follows))
        elif (end := length + len(follows.token_ids)) < self.longest:
            images = (*conversation.images, *follows.images)
            return follows.token_ids, replace(conversation, next_start=end, images=images)
        return [], replace(conversation, ending="tokens")

    def _following(
        self,
        sequence: OpenSequence,
        conversation: Dialogue,
        prompt: Prompt,
        messages: Sequence[EnvironmentMessage],
    ) -> _Following | Restart:
        """Return the tokens of messages, or a new prompt if the template changes earlier turns.

        Raises:
            DataError: A picture is refused.
        """
        template, given, length = self.template, None, len(sequence.tokens_N)
        kept = self._kept([picture for each in messages for picture in each.pictures])
        if messages[0].role in template.pieces:
            texts = [(each.role, each.pieces) for each in messages]
            given = template.after_turn(texts, self.config.max_result_tokens)
        if template.is_kept:
            assert given is not None, "validated: the template has the role"
            return self._placed(given, kept, len(conversation.prompt_ids) + length)
        rendered = self._rendered(sequence, conversation, prompt)
        if given is not None:
            segment = conversation.segments(length)[-1]
            written = sequence.tokens_N[segment.start :].tolist()
            if template.is_same_text([*segment.prompt_ids, *written, *given], rendered):
                return _Following(given)
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

    def _row(self, prompt: Prompt) -> Mapping[str, object]:
        assert prompt.row is not None, "rows are read for environments"
        columns = prompt.row.columns
        return {**columns} if self.images is None else self.images.as_paths(columns)

    def _action(self, sequence: OpenSequence, start: int, end: int) -> Action:
        text = self.decode(sequence.tokens_N[start:end].tolist())
        return Action(text=text, calls=TOOL_FORMATS[self.config.tool_format](text))

    def _is_over(self, shown: int, given: int) -> bool:
        """Return whether `shown` and `given` pictures together are more than allowed."""
        return given > 0 and shown + given > self._most_pictures

    @property
    def _most_pictures(self) -> float:
        """Maximum pictures of a conversation; for a text model, `_kept` refuses them all."""
        return inf if self.images is None else self.images.config.max_per_prompt

    def _kept(self, pictures: Sequence[GivenPicture]) -> Sequence[KeptImage]:
        """Keep the pictures of an answer.

        Raises:
            DataError: One is refused.
        """
        if self.images is not None:
            return self.images.keep_given([each.content for each in pictures])
        if pictures:
            need = "actor_config.load names a model without a vision tower"
            raise DataError(f"it gave a picture, and {need}")
        return ()

    def _placed(
        self, token_ids: Sequence[int], images: Sequence[KeptImage], first: int
    ) -> _Following:
        """Expand pictures to their tokens; the token ids begin at `first` in the sequence."""
        if self.images is None:
            return _Following(token_ids)
        # Texts contain no image tokens: all of these come from the template.
        expanded, placed = self.images.placed("an answer of an environment", token_ids, images)
        return _Following(
            expanded, tuple(each._replace(first=first + each.first) for each in placed)
        )
