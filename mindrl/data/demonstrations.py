"""Convert rows to conversations for supervised training, and mark the target tokens."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import ChatMessage, Demonstration, PlacedImage, Prompt
from mindrl.config.data import DataPath
from mindrl.config.megatron_training import PLAIN
from mindrl.config.run import RunConfig
from mindrl.data.columns import Columns
from mindrl.data.prompts import (
    Longest,
    PromptSet,
    answer_of,
    conversation_of,
    load_set,
    question_of,
)
from mindrl.data.reading import ChosenRows, Reading
from mindrl.data.roles import check_roles
from mindrl.data.row_images import MARK, KeptImage, RowImages, pictures_of, with_parts
from mindrl.data.rows import Row, column_of
from mindrl.data.tokenizer import plain_prefix
from mindrl.errors import DataError

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Marks in a chat template around the model's part."""
_FIELD = "sft_config.response_column"


def load_demonstrations(
    paths: DataPath,
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    stop_token_ids: Collection[int],
    reading: Reading,
) -> PromptSet:
    """Read data files, and render whole conversations with the tokenizer's chat template.

    Targets are the tokens of answers and the token that ends each answer.

    Raises:
        DataError: The file or one of its rows breaks the stated format, the target tokens cannot be
            determined, or a conversation is too long and the policy is "error".
    """
    training, sft = config.megatron_training, config.sft_config
    assert sft is not None, "the run is supervised"
    lesson = Lesson(
        tokenizer=tokenizer,
        stop_token_ids=stop_token_ids,
        turns=sft.turns,
        is_plain=training.takes_plain_text,
        images=reading.images,
    )

    def messages_of(row: Row, columns: Columns) -> list[ChatMessage]:
        if sft.response_column is None:
            return conversation_of(row, training, columns.prompt)
        question = question_of(row, training, columns.prompt)
        answer = answer_of(row, sft.response_column, _FIELD)
        return [*question, {"role": "assistant", "content": answer}]

    def of_row(row: Row, columns: Columns, uid: int, source: str) -> Prompt:
        messages = messages_of(row, columns)
        _, prompt = column_of(row, columns.prompt, "megatron_training.prompt_column")
        kept = pictures_of(reading.images, row, messages, prompt)
        return lesson.demonstration(messages, row.place, kept, uid=uid, source=source)

    return load_lessons(paths, config, reading, of_row)


def load_lessons(
    paths: DataPath,
    config: RunConfig,
    reading: Reading,
    of_row: Callable[[Row, Columns, int, str], Prompt],
    *,
    spare: int = 0,
) -> PromptSet:
    """Read data files; `of_row` converts a row, given the columns, its uid and its source.

    A conversation leaves `spare` tokens of the longest sequence free.

    Raises:
        DataError: The file or one of its rows breaks the stated format, or a conversation is too
            long and the policy is "error".
    """

    def make(chosen: ChosenRows, columns: Columns) -> tuple[Prompt, ...]:
        reading = chosen.reading
        return tuple(
            of_row(row, columns, reading.first_uid + at, reading.source_of(row))
            for at, row in chosen
        )

    training = config.megatron_training
    longest = Longest(
        what="conversation",
        key="megatron_training.seq_length",
        tokens=training.seq_length - spare,
        drops=config.rl_config.overlong_prompt_policy == "drop",
    )
    return load_set(paths, training, reading, longest, make)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Renders conversations and marks their target tokens."""

    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: Collection[int]
    """Tokens that end a response, and so an answer here."""
    turns: Literal["all", "last"]
    is_plain: bool = False
    """Concatenate question and answer without a template."""
    images: RowImages | None = None
    """Places the pictures of prompts. None for a model of text."""

    def demonstration(
        self,
        messages: list[ChatMessage],
        place: str,
        kept: Sequence[KeptImage],
        *,
        uid: int,
        source: str,
    ) -> Demonstration:
        """Render a conversation that ends with an answer of the assistant; `kept` are its pictures.

        Raises:
            DataError: It has another end, an answer has a picture, or the target tokens cannot be
                determined.
        """
        if messages[-1]["role"] != "assistant":
            need = f"add an answer of the assistant, or name its column in {_FIELD}"
            raise DataError(f"{place}: the conversation ends with a question; {need}")
        answers = (each["content"] for each in messages if each["role"] == "assistant")
        if kept and any(MARK in answer for answer in answers):
            need = f"needed each {MARK} in a message of another role"
            raise DataError(f"{place}: an answer of the assistant has a picture; {need}")
        text = "".join(each["content"] for each in messages)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{place}: half of a surrogate pair is not valid text ({error})"
            ) from error
        if self.is_plain:
            token_ids, targets = self._plain(messages, place)
        else:
            text = self._rendered(messages, place)
            by_marks = _MARKS.search(self.tokenizer.get_chat_template()) is not None
            found = self._by_marks(messages) if by_marks else None
            token_ids, marked = found or self._by_prefixes(messages, text, place)
            targets = self._with_ends(token_ids, marked, place)
        ids = tuple(token_ids)
        placed: tuple[PlacedImage, ...] = ()
        if self.images is not None:
            ids, placed = self.images.placed(place, token_ids, kept)
        for each in placed:
            # A picture has its tokens now instead of one placeholder, which is no target.
            targets[each.first + 1 : each.first + 1] = [False] * (each.tokens - 1)
        return Demonstration(
            uid=uid,
            token_ids=ids,
            text=text,
            answer="",
            source=source,
            targets=tuple(targets),
            images=placed,
        )

    def _plain(self, messages: list[ChatMessage], place: str) -> tuple[list[int], list[bool]]:
        """Tokenise question and answer separately, as in rollouts; targets are answer and end."""
        if len(messages) != 2:
            need = f"megatron_training.chat_template={PLAIN} needs text or one message"
            raise DataError(f"{place}: {len(messages) - 1} messages; {need}")
        question, answer = (
            self.tokenizer(each["content"], add_special_tokens=False)["input_ids"]
            for each in messages
        )
        asked = [*plain_prefix(self.tokenizer), *question]
        own = self.tokenizer.eos_token_id
        end = own if own in self.stop_token_ids else min(self.stop_token_ids)
        targets = [False] * len(asked) + [True] * (len(answer) + 1)
        return [*asked, *answer, end], targets

    def _rendered(self, messages: list[ChatMessage], place: str, *, asks: bool = False) -> str:
        check_roles(place, messages, self.tokenizer)
        try:
            text: str = self.tokenizer.apply_chat_template(
                self._in_parts(messages), add_generation_prompt=asks, tokenize=False
            )
        except TemplateError as error:
            wrong = f"the chat template rejects the conversation: {error}"
            raise DataError(f"{place}: {wrong}") from error
        return text

    def _by_marks(self, messages: list[ChatMessage]) -> tuple[list[int], list[bool]]:
        """Return the token ids and the mask of the template's own marks."""
        found = self.tokenizer.apply_chat_template(
            self._in_parts(messages), return_dict=True, return_assistant_tokens_mask=True
        )
        return found["input_ids"], [bool(each) for each in found["assistant_masks"]]

    def _in_parts(self, messages: list[ChatMessage]) -> list[Mapping[str, Any]]:
        """Return the messages with pictures as parts, if the model reads pictures."""
        return [*messages] if self.images is None else [*map(with_parts, messages)]

    def _by_prefixes(
        self, messages: list[ChatMessage], text: str, place: str
    ) -> tuple[list[int], list[bool]]:
        """Mark the text that each answer adds to the rendered conversation before it."""
        if not self.tokenizer.is_fast:
            need = (
                "use a fast tokenizer, which reports token positions, or a chat template "
                "with {% generation %} marks"
            )
            raise DataError(
                f"{place}: the tokenizer {type(self.tokenizer).__name__} is slow; {need}"
            )
        answers = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
        spans = [
            self._span(messages, at, text, place)
            for at in (answers[-1:] if self.turns == "last" else answers)
        ]
        # The template contains every special token, so the tokenizer must not add more.
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        marked = [
            any(start < last and end > first for first, last in spans)
            for start, end in found["offset_mapping"]
        ]
        return found["input_ids"], marked

    def _span(self, messages: list[ChatMessage], at: int, text: str, place: str) -> tuple[int, int]:
        """Return the start and end of a message in characters."""
        asked = self._rendered(messages[:at], place, asks=True)
        answered = self._rendered(messages[: at + 1], place)
        if not (text.startswith(answered) and answered.startswith(asked)):
            last = at == len(messages) - 1
            hint = "" if last else "; or set sft_config.turns=last to train on the last answer only"
            raise DataError(
                f"{place}, message {at + 1}: the chat template changes earlier text when "
                "a message follows, so the answer's tokens are unknown; use a template "
                f"with {{% generation %}} marks or one that only appends{hint}"
            )
        return len(asked), len(answered)

    def _with_ends(self, token_ids: list[int], marked: list[bool], place: str) -> list[bool]:
        """Mark each answer up to and including the token that ends it."""
        targets, runs = [False] * len(marked), [*_runs(marked)]
        for first, last in runs[-1:] if self.turns == "last" else runs:
            # The model never generates what a template writes after the end of an answer.
            ends = [at for at in range(first, last) if token_ids[at] in self.stop_token_ids]
            if not ends and last < len(token_ids) and token_ids[last] in self.stop_token_ids:
                ends = [last]
            if not ends:
                names = self.tokenizer.convert_ids_to_tokens(sorted(self.stop_token_ids))
                raise DataError(
                    f"{place}: the chat template writes no end token after an answer, so "
                    "the model would not learn to stop; needs "
                    f"{' or '.join(map(str, names))}"
                )
            targets[first : ends[-1] + 1] = [True] * (ends[-1] + 1 - first)
        if targets[0] or not runs:
            raise DataError(f"{place}: the prompt or the answer is empty")
        return targets


def _runs(marked: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of marked tokens."""
    at = 0
    for is_marked, run in groupby(marked):
        end = at + sum(1 for _ in run)
        if is_marked:
            yield at, end
        at = end
