"""From a JSONL or Parquet file to prompts as token ids."""

import difflib
import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import datasets
from datasets.exceptions import DatasetGenerationError
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import Prompt
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.rl import RLConfig
from mindrl.errors import DataError

_LOGGER = logging.getLogger(__name__)

ChatMessage = dict[str, str]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """One row of a data file."""

    place: str
    """For messages: file and line, or file and row."""
    values: dict[str, Any]
    """Column name to value."""


def read_rows(path: str) -> Iterator[Row]:
    """Yield the rows of a file, whose suffix says its format: .jsonl or .parquet.

    Raises:
        DataError: The file is missing, unreadable, of another format, or malformed.
    """
    file = Path(path)
    reader = {".jsonl": _read_jsonl, ".parquet": _read_parquet}.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"data file {path}: suffix {file.suffix!r}; needed .jsonl or .parquet")
    if not file.exists():
        raise DataError(f"data file {path}: no such file")
    if not file.is_file():
        raise DataError(f"data file {path}: not a file")
    try:
        yield from reader(file)
    except OSError as error:
        raise DataError(f"data file {path}: cannot be read ({error.strerror or error})") from error


def _read_jsonl(file: Path) -> Iterator[Row]:
    """Yield one row per line that is not blank.

    The JSON reader of `datasets` is not used: it loses line numbers, turns text that
    looks like a date into a timestamp, and rounds whole numbers above 2**63.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if content.strip():
                place = f"{file}:{number}"
                yield Row(place, _parse_object(place, content))


def _parse_object(place: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start + 1} of the line is not UTF-8 ({error.reason})"
        raise DataError(f"{place}: {wrong}") from error
    except json.JSONDecodeError as error:
        wrong = f"{error.msg} at character {error.pos + 1} of the line"
        raise DataError(f"{place}: not JSON: {wrong}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: a {type(value).__name__}; needed a JSON object with columns")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _read_parquet(file: Path) -> Iterator[Row]:
    # The cache of `datasets` goes by name and time stamp; a fresh one cannot be stale.
    with tempfile.TemporaryDirectory() as cache, _no_progress_bars():
        try:
            table = datasets.Dataset.from_parquet(str(file), cache_dir=cache, keep_in_memory=True)
        except (DatasetGenerationError, ValueError, NotImplementedError) as error:
            cause = error.__cause__ or error
            raise DataError(f"data file {file}: not a Parquet file ({cause})") from error
    for index, values in enumerate(table):
        yield Row(f"{file}, row {index} counted from 0", values)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    were_on = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_on:
            datasets.enable_progress_bars()


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of one file, in its order."""

    path: str
    prompts: tuple[Prompt, ...]
    dropped: int
    """Prompts left out for their length."""


class _Rendered(NamedTuple):
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
    key = f"rl_config.max_prompt_length={rl.max_prompt_length}"
    lengths = [len(prompt.token_ids) for prompt in prompts]
    too_long = [uid for uid, length in enumerate(lengths) if length > rl.max_prompt_length]
    if not too_long:
        return prompts
    if rl.overlong_prompt_policy == "error":
        raise DataError(
            f"{places[too_long[0]]}: prompt of {lengths[too_long[0]]} tokens is longer than {key}; "
            f"{len(too_long)} of {len(prompts)} prompts are, the longest has {max(lengths)}. "
            "Raise the limit, or set rl_config.overlong_prompt_policy=drop"
        )
    if len(too_long) == len(prompts):
        raise DataError(
            f"data file {path}: no prompt is left, all {len(prompts)} are longer than {key}; "
            f"the longest has {max(lengths)} tokens"
        )
    _LOGGER.warning(
        "%s: dropped %d of %d prompts longer than %s tokens", path, len(too_long), len(prompts), key
    )
    return tuple(prompt for prompt in prompts if len(prompt.token_ids) <= rl.max_prompt_length)


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
    where, value = _column(row, training.prompt_column, "megatron_training.prompt_column")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        need = "needed text or a list of messages, not empty"
        raise DataError(f"{where} holds {_shown(value)}; {need}")
    messages = [_message(f"{where}, message {at}", each) for at, each in enumerate(value, start=1)]
    if messages[-1]["role"] == "assistant":
        raise DataError(f"{where} ends with an answer of the assistant; needed a question")
    if training.system_prompt is None:
        return messages
    if any(message["role"] == "system" for message in messages):
        need = "needed none, as megatron_training.system_prompt is set"
        raise DataError(f"{where} has a system message of its own; {need}")
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
    where, value = _column(row, training.answer_column, "megatron_training.answer_column")
    answer = str(value) if type(value) in (int, float) else value
    if not isinstance(answer, str) or not answer.strip():
        need = "needed an answer: text, not empty, or a number"
        raise DataError(f"{where} holds {_shown(value)}; {need}")
    return answer


def _column(row: Row, column: str, field: str) -> tuple[str, Any]:
    """Return the place of a value, for messages, and the value."""
    if column in row.values:
        return f"{row.place}: column {column!r}", row.values[column]
    close = difflib.get_close_matches(column, row.values, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    found = ", ".join(row.values) or "none"
    raise DataError(f"{row.place}: no column {field}={column!r}; found: {found}{hint}")


def _shown(value: Any) -> str:
    """Quote a value as JSON, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
