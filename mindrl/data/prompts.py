"""Convert data files to prompts as token ids."""

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import ChatMessage, PlacedImage, Prompt, PromptRow
from mindrl.config.data import DataPath, paths_of
from mindrl.config.megatron_training import PLAIN, MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.columns import Columns, columns_of
from mindrl.data.files import files_of
from mindrl.data.reading import ChosenRows, Reading
from mindrl.data.roles import check_roles
from mindrl.data.row_images import (
    KeptImage,
    RowImages,
    has_parts,
    joined_parts,
    pictures_of,
    with_parts,
)
from mindrl.data.rows import Row, column_of, read_rows, shown
from mindrl.data.tokenizer import plain_prefix, rendered_chat
from mindrl.environments.row_tools import RowTools
from mindrl.errors import DataError

_LOGGER = logging.getLogger(__name__)

_WRITTEN_MESSAGES = re.compile(r"""\s*\[\s*\{\s*["'](role|content)["']\s*:""")
"""Matches a list of messages written as text into a CSV file."""


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Prompts of one set of rows, in their order."""

    path: str
    """Paths of its files, as configured."""
    prompts: tuple[Prompt, ...]
    dropped: int
    """Number of prompts dropped for their length."""
    filtered: int = 0
    """Number of rows left out for their pass rate."""
    ranks: tuple[float, ...] = ()
    """Sort key of each prompt; empty without an order column."""
    tests: int = 0
    """Number of rows left out because they are test prompts."""
    note: str = ""
    """Further note about its rows."""
    columns: tuple[str, ...] = ()
    """Columns of all its rows."""

    @property
    def rows(self) -> int:
        """Number of rows in the files."""
        return len(self.prompts) + self.dropped + self.filtered + self.tests

    def without(self, texts: Collection[str]) -> "PromptSet":
        """Return the set without prompts that have these texts, counted as tests."""
        kept = [at for at, each in enumerate(self.prompts) if each.identity not in texts]
        return replace(
            self,
            prompts=tuple(self.prompts[at] for at in kept),
            ranks=tuple(self.ranks[at] for at in kept) if self.ranks else (),
            tests=self.tests + len(self.prompts) - len(kept),
        )


def joined(sets: Sequence[PromptSet]) -> PromptSet:
    """Concatenate sets."""
    if len(sets) == 1:
        return sets[0]
    return PromptSet(
        path=", ".join(each.path for each in sets),
        prompts=tuple(prompt for each in sets for prompt in each.prompts),
        dropped=sum(each.dropped for each in sets),
        filtered=sum(each.filtered for each in sets),
        tests=sum(each.tests for each in sets),
        columns=tuple(dict.fromkeys(name for each in sets for name in each.columns)),
    )


class _Rendered(NamedTuple):
    """A row rendered with the chat template."""

    place: str
    text: str
    answer: str
    source: str
    row: PromptRow | None
    images: tuple[KeptImage, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Longest:
    """Maximum length in tokens, and whether longer prompts are dropped or refused."""

    what: str
    key: str
    tokens: int
    drops: bool


Make = Callable[[ChosenRows, Columns], tuple[Prompt, ...]]
"""Creates the prompts of the chosen rows, which it must go through once, and completely."""


def load_set(
    paths: DataPath,
    training: MegatronTrainingConfig,
    reading: Reading,
    longest: Longest,
    make: Make,
) -> PromptSet:
    """Read data files and create prompts from their rows.

    Raises:
        DataError: A file or one of its rows breaks the stated format, a prompt is too long and the
            policy is "error", or no prompt is left.
    """
    path, rows = ", ".join(paths_of(paths)), _rows_of(paths)
    first = next(rows)
    columns = columns_of(training, first)
    reading = reading.by_form(columns.source)
    chosen = ChosenRows(path=path, rows=chain([first], rows), reading=reading)
    prompts = make(chosen, columns)
    kept = _limit_length(prompts, chosen.places, path, longest)
    ranks = (chosen.ranks[prompt.uid - reading.first_uid] for prompt in kept)
    return PromptSet(
        path=path,
        prompts=kept,
        dropped=len(prompts) - len(kept),
        filtered=chosen.count - len(chosen.places),
        ranks=tuple(rank for rank in ranks if rank is not None),
        note=columns.note,
        columns=tuple(chosen.columns),
    )


def load_prompts(
    paths: DataPath,
    training: MegatronTrainingConfig,
    rl: RLConfig,
    tokenizer: PreTrainedTokenizerBase,
    reading: Reading | None = None,
    tools: RowTools | None = None,
) -> PromptSet:
    """Read data files and render their prompts with the tokenizer's chat template.

    `reading` selects further fields of a row; None reads prompt and answer only. `tools` are those
    that the policy may call.

    Raises:
        DataError: The file or one of its rows breaks the stated format, a prompt is too long and
            the policy is "error", or no prompt is left.
    """

    def make(chosen: ChosenRows, columns: Columns) -> tuple[Prompt, ...]:
        reading = chosen.reading
        chat = _Chat(tokenizer, tools, reading.images)
        rendered = {at: _render(row, training, columns, chat, reading) for at, row in chosen}
        # The template contains every special token, so the tokenizer must not add more.
        prefix = plain_prefix(tokenizer) if training.takes_plain_text else []
        texts = [row.text for row in rendered.values()]
        token_ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        placed = [
            chat.placed(row, [*prefix, *ids])
            for row, ids in zip(rendered.values(), token_ids, strict=True)
        ]
        return tuple(
            Prompt(
                uid=reading.first_uid + at,
                token_ids=ids,
                text=row.text,
                answer=row.answer,
                source=row.source,
                row=row.row,
                images=shown_images,
            )
            for (at, row), (ids, shown_images) in zip(rendered.items(), placed, strict=True)
        )

    longest = Longest(
        what="prompt",
        key="rl_config.max_prompt_length",
        tokens=rl.max_prompt_length,
        drops=rl.overlong_prompt_policy == "drop",
    )
    return load_set(paths, training, reading or Reading(), longest, make)


def _rows_of(paths: DataPath) -> Iterator[Row]:
    """Yield the rows of all files, at least one; raise DataError if a file is empty."""
    for file in files_of(paths):
        is_empty = True
        for row in read_rows(file):
            is_empty = False
            yield row
        if is_empty:
            raise DataError(f"data file {file}: no rows; needed at least one")


def _limit_length(
    prompts: tuple[Prompt, ...], places: Sequence[str], path: str, longest: Longest
) -> tuple[Prompt, ...]:
    what, key = longest.what, f"{longest.key}={longest.tokens}"
    lengths = [len(prompt.token_ids) for prompt in prompts]
    too_long = [uid for uid, length in enumerate(lengths) if length > longest.tokens]
    if not too_long:
        return prompts
    if not longest.drops:
        raise DataError(
            f"{places[too_long[0]]}: {what} of {lengths[too_long[0]]} tokens is longer "
            f"than {key}; so are {len(too_long)} of {len(prompts)} {what}s, up to "
            f"{max(lengths)} tokens. Raise the limit, or set "
            "rl_config.overlong_prompt_policy=drop"
        )
    if len(too_long) == len(prompts):
        raise DataError(
            f"data file {path}: all {len(prompts)} {what}s are longer than {key}; the "
            f"longest has {max(lengths)} tokens"
        )
    _LOGGER.warning(
        "%s: dropped %d of %d %ss longer than %s tokens",
        *(path, len(too_long), len(prompts), what, key),
    )
    return tuple(prompt for prompt in prompts if len(prompt.token_ids) <= longest.tokens)


def _render(
    row: Row,
    training: MegatronTrainingConfig,
    columns: Columns,
    chat: "_Chat",
    reading: Reading,
) -> _Rendered:
    messages, is_plain = question_of(row, training, columns.prompt), training.takes_plain_text
    tools = chat.tools_of(row)
    images = chat.images_of(row, messages, columns.prompt)
    text = _plain(row, messages) if is_plain else chat.render(row, messages, tools)
    answer = _answer(row, columns.answer, has_environment=chat.tools is not None)
    try:
        f"{text}{answer}".encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{row.place}: half of a surrogate pair is not valid text ({error})"
        ) from error
    _, prompt = column_of(row, columns.prompt, "megatron_training.prompt_column")
    given = reading.row_of(row, messages, images, is_chat=not isinstance(prompt, str))
    if given is not None and tools:
        given = replace(given, tools=tools)
    source = reading.source_of(row)
    return _Rendered(row.place, text, answer, source, given, images)


def _answer(row: Row, column: str | None, *, has_environment: bool) -> str:
    """Return the reference answer of a row; empty if the run reads none."""
    if column is None:
        return ""
    try:
        return answer_of(row, column)
    except DataError as error:
        if not has_environment:
            raise
        need = "if only the environment gives rewards, set megatron_training.answer_column=null"
        raise DataError(f"{error}; {need}") from error


@dataclass(frozen=True)
class _Chat:
    """A chat template, and the tools and pictures that it can show."""

    tokenizer: PreTrainedTokenizerBase
    tools: RowTools | None
    images: RowImages | None = None

    def images_of(
        self, row: Row, messages: list[ChatMessage], column: str
    ) -> tuple[KeptImage, ...]:
        _, prompt = column_of(row, column, "megatron_training.prompt_column")
        return pictures_of(self.images, row, messages, prompt)

    def placed(
        self, row: _Rendered, token_ids: list[int]
    ) -> tuple[tuple[int, ...], tuple[PlacedImage, ...]]:
        """Return the token ids of a prompt with those of its pictures, and their places."""
        if self.images is None:
            return tuple(token_ids), ()
        return self.images.placed(row.place, token_ids, row.images)

    def tools_of(self, row: Row) -> Sequence[Mapping[str, Any]]:
        if self.tools is None:
            return ()
        try:
            return self.tools.of(row.values)
        except ValueError as error:
            raise DataError(f"{row.place}: {error}") from error

    def render(
        self, row: Row, messages: list[ChatMessage], tools: Sequence[Mapping[str, Any]]
    ) -> str:
        check_roles(row.place, messages, self.tokenizer)
        in_parts = messages if self.images is None else [*map(with_parts, messages)]
        try:
            return rendered_chat(self.tokenizer, in_parts, tools)
        except TemplateError as error:
            raise DataError(
                f"{row.place}: the chat template rejects the prompt: {error}"
            ) from error


def _plain(row: Row, messages: list[ChatMessage]) -> str:
    if len(messages) > 1:
        need = f"megatron_training.chat_template={PLAIN} needs text or one message"
        raise DataError(f"{row.place}: {len(messages)} messages; {need}")
    return messages[0]["content"]


def question_of(row: Row, training: MegatronTrainingConfig, column: str) -> list[ChatMessage]:
    """Return the messages of a row, which must end with a question.

    Raises:
        DataError: There are none, or they end with an answer.
    """
    messages = conversation_of(row, training, column)
    if messages[-1]["role"] == "assistant":
        where = f"{row.place}: column {column!r}"
        raise DataError(f"{where} ends with an answer of the assistant; needed a question")
    return messages


def conversation_of(row: Row, training: MegatronTrainingConfig, column: str) -> list[ChatMessage]:
    """Return the messages of a row, after the configured system prompt.

    Raises:
        DataError: There are none, or one is not a message.
    """
    where, value = column_of(row, column, "megatron_training.prompt_column")
    if isinstance(value, str):
        if _WRITTEN_MESSAGES.match(value):
            need = "messages written as text; needed a list of them, in .jsonl, .json or .parquet"
            raise DataError(f"{where} holds {need}")
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        need = "needed text or a list of messages, not empty"
        raise DataError(f"{where} holds {shown(value)}; {need}")
    messages = [_message(f"{where}, message {at}", each) for at, each in enumerate(value, start=1)]
    if training.system_prompt is None:
        return messages
    if any(message["role"] == "system" for message in messages):
        need = "needed none, as megatron_training.system_prompt is set"
        raise DataError(f"{where} has a system message of its own; {need}")
    return [{"role": "system", "content": training.system_prompt}, *messages]


def _message(where: str, value: Any) -> ChatMessage:
    if not isinstance(value, dict):
        raise DataError(f"{where} is {shown(value)}; needed an object with role and content")
    # Parquet fills keys that only other rows have with null.
    present = {key: content for key, content in value.items() if content is not None}
    if set(present) != {"role", "content"}:
        raise DataError(f"{where} has keys {sorted(present)}; needed ['content', 'role']")
    if isinstance(content := present.get("content"), list) and has_parts(content):
        present["content"] = joined_parts(where, content)
    for key, content in present.items():
        if not isinstance(content, str) or not content.strip():
            raise DataError(f"{where}: {key} is {shown(content)}; needed text, not empty")
    return present


def answer_of(row: Row, column: str, field: str = "megatron_training.answer_column") -> str:
    """Return the answer in a column of a row.

    Raises:
        DataError: It has none.
    """
    where, value = column_of(row, column, field)
    answer = str(value) if type(value) in (int, float) else value
    if not isinstance(answer, str) or not answer.strip():
        need = "needed an answer: text, not empty, or a number"
        raise DataError(f"{where} holds {shown(value)}; {need}")
    return answer
