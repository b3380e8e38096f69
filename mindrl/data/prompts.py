"""From a data file to prompts as token ids."""

import difflib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import Prompt
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.data.rows import Row, read_rows
from mindrl.errors import DataError

_LOGGER = logging.getLogger(__name__)

ChatMessage = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of one file, in its order."""

    path: str
    prompts: tuple[Prompt, ...]
    dropped: int
    """Prompts left out for their length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rendered:
    """A row after the chat template."""

    place: str
    text: str
    answer: str


def load_prompts(
    path: str,
    training: MegatronTrainingConfig,
    rl: RLConfig,
    tokenizer: PreTrainedTokenizerBase,
) -> PromptSet:
    """Read a data file and render its prompts with the tokenizer's chat template.

    Args:
        path: A .jsonl or .parquet file.
        training: Names the columns and a system message.
        rl: Bounds the length of a prompt.
        tokenizer: Of the model.

    Raises:
        DataError: The file or one of its rows breaks the stated format, a prompt is too
            long where the policy is "error", or no prompt is left.
    """
    rendered = [_render(row, training, tokenizer) for row in read_rows(path)]
    if not rendered:
        raise DataError(f"data file {path}: no rows; needed at least one")
    # The template has placed every special token, so the tokenizer must not add its own.
    token_ids = tokenizer([row.text for row in rendered], add_special_tokens=False)["input_ids"]
    prompts = tuple(
        Prompt(uid=uid, token_ids=tuple(ids), text=row.text, answer=row.answer)
        for uid, (row, ids) in enumerate(zip(rendered, token_ids, strict=True))
    )
    kept = _limit_length(prompts, [row.place for row in rendered], path, rl)
    return PromptSet(path=path, prompts=kept, dropped=len(prompts) - len(kept))


def _limit_length(
    prompts: tuple[Prompt, ...], places: Sequence[str], path: str, rl: RLConfig
) -> tuple[Prompt, ...]:
    limit = rl.max_prompt_length
    kept = tuple(prompt for prompt in prompts if len(prompt.token_ids) <= limit)
    dropped = len(prompts) - len(kept)
    if dropped == 0:
        return prompts
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if rl.overlong_prompt_policy == "error":
        first = next(prompt for prompt in prompts if len(prompt.token_ids) > limit)
        raise DataError(
            f"{places[first.uid]}: prompt of {len(first.token_ids)} tokens is longer than "
            f"rl_config.max_prompt_length={limit}; {dropped} of {len(prompts)} prompts are, the "
            f"longest has {longest}. Raise the limit, or set rl_config.overlong_prompt_policy=drop"
        )
    if not kept:
        raise DataError(
            f"data file {path}: no prompt is left, all {dropped} are longer than "
            f"rl_config.max_prompt_length={limit}; the longest has {longest} tokens"
        )
    _LOGGER.warning(
        "%s: dropped %d of %d prompts longer than rl_config.max_prompt_length=%d tokens",
        path,
        dropped,
        len(prompts),
        limit,
    )
    return kept


def _render(
    row: Row, training: MegatronTrainingConfig, tokenizer: PreTrainedTokenizerBase
) -> _Rendered:
    messages = _messages(row, training)
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise DataError(f"{row.place}: the chat template refuses the prompt: {error}") from error
    answer = _answer(row, training)
    try:
        f"{text}{answer}".encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{row.place}: half of a surrogate pair is no text ({error})") from error
    return _Rendered(place=row.place, text=text, answer=answer)


def _messages(row: Row, training: MegatronTrainingConfig) -> list[ChatMessage]:
    column = training.prompt_column
    value = _column(row, column, "megatron_training.prompt_column")
    where = f"{row.place}: column {column!r}"
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{where} holds {_shown(value)}; needed text or a list of messages, not empty"
        )
    messages = [
        _message(f"{where}, message {number}", message)
        for number, message in enumerate(value, start=1)
    ]
    if messages[-1]["role"] == "assistant":
        raise DataError(f"{where} ends with an answer of the assistant; needed a question")
    if training.system_prompt is None:
        return messages
    if any(message["role"] == "system" for message in messages):
        raise DataError(
            f"{where} has a system message of its own; "
            "needed none, as megatron_training.system_prompt is set"
        )
    return [{"role": "system", "content": training.system_prompt}, *messages]


def _message(where: str, value: Any) -> ChatMessage:
    if not isinstance(value, dict):
        raise DataError(f"{where} is {_shown(value)}; needed an object with role and content")
    # Parquet fills the keys that only other rows have with null.
    present = {key: content for key, content in value.items() if content is not None}
    if set(present) != {"role", "content"}:
        raise DataError(f"{where} has keys {sorted(present)}; needed ['content', 'role']")
    for key, content in present.items():
        if not isinstance(content, str) or not content.strip():
            raise DataError(f"{where}: {key} is {_shown(content)}; needed text, not empty")
    return present


def _answer(row: Row, training: MegatronTrainingConfig) -> str:
    value = _column(row, training.answer_column, "megatron_training.answer_column")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    answer = str(value) if is_number else value
    if not isinstance(answer, str) or not answer.strip():
        raise DataError(
            f"{row.place}: column {training.answer_column!r} holds {_shown(value)}; "
            "needed an answer: text, not empty, or a number"
        )
    return answer


def _column(row: Row, column: str, field: str) -> Any:
    if column in row.values:
        return row.values[column]
    close = difflib.get_close_matches(column, row.values, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    found = ", ".join(row.values) or "none"
    raise DataError(f"{row.place}: no column {field}={column!r}; found: {found}{hint}")


def _shown(value: Any) -> str:
    """Quote a value as JSON, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
