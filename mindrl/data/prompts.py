"""From the rows of a data file to prompts in token ids."""

import logging
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import Prompt
from mindrl.data.rows import Row, read_rows
from mindrl.errors import DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """Where prompts come from and which are taken."""

    path: str
    prompt_column: str
    answer_column: str
    max_prompt_length: int
    """In tokens, the chat template included."""
    overlong_prompt_policy: Literal["error", "drop"]
    system_prompt: str | None
    """Put before every prompt; None adds nothing."""


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of one file."""

    prompts: tuple[Prompt, ...]
    dropped: int
    """Prompts that were too long."""


def load_prompts(source: PromptSource, tokenizer: PreTrainedTokenizerBase) -> PromptSet:
    """Read a file and render each prompt with the tokenizer's chat template.

    Raises:
        DataError: The file or a row breaks the format, a prompt is too long and the policy is
            `error`, or no prompt is left.
    """
    rows = read_rows(
        source.path, prompt_column=source.prompt_column, answer_column=source.answer_column
    )
    rendered = [_render(uid, row, source, tokenizer) for uid, row in enumerate(rows)]
    kept = tuple(prompt for prompt in rendered if len(prompt.token_ids) <= source.max_prompt_length)
    dropped = len(rendered) - len(kept)
    if dropped:
        _apply_policy(source, rows, rendered, dropped)
    if not kept:
        raise DataError(
            f"{source.path}: all {dropped} prompts are longer than "
            f"rl_config.max_prompt_length={source.max_prompt_length}"
        )
    return PromptSet(prompts=kept, dropped=dropped)


def _render(uid: int, row: Row, source: PromptSource, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    messages = _messages(row)
    if source.system_prompt is not None:
        messages = [{"role": "system", "content": source.system_prompt}, *messages]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:
        # A template is a program of its author's and raises what it likes.
        raise DataError(f"{row.place}: the chat template refuses the prompt: {error}") from error
    # The template has written every special token itself.
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return Prompt(uid=uid, token_ids=tuple(token_ids), text=text, reference=_reference(row))


def _messages(row: Row) -> list[dict[str, str]]:
    if isinstance(row.prompt, str) and row.prompt.strip():
        return [{"role": "user", "content": row.prompt}]
    if isinstance(row.prompt, list) and row.prompt and all(map(_is_message, row.prompt)):
        return row.prompt
    raise DataError(
        f"{row.place}: the prompt must be text or a list of messages with role and content, "
        f"found {str(row.prompt)[:100]!r}"
    )


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )


def _reference(row: Row) -> str:
    number = isinstance(row.answer, int | float) and not isinstance(row.answer, bool)
    if not number and not isinstance(row.answer, str):
        found = type(row.answer).__name__
        raise DataError(f"{row.place}: the answer must be text or a number, found {found}")
    reference = str(row.answer)
    if not reference.strip():
        raise DataError(f"{row.place}: the answer is empty")
    return reference


def _apply_policy(
    source: PromptSource, rows: list[Row], rendered: list[Prompt], dropped: int
) -> None:
    limit = source.max_prompt_length
    if source.overlong_prompt_policy == "drop":
        logger.warning(
            "%s: dropped %d of %d prompts longer than rl_config.max_prompt_length=%d",
            source.path,
            dropped,
            len(rows),
            limit,
        )
        return
    first = next(prompt for prompt in rendered if len(prompt.token_ids) > limit)
    raise DataError(
        f"{rows[first.uid].place}: the prompt has {len(first.token_ids)} tokens, "
        f"rl_config.max_prompt_length={limit} ({dropped} such prompts); raise the limit or set "
        "rl_config.overlong_prompt_policy=drop"
    )
