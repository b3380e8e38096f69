"""The tokenizer of a model folder, and the tokens that end a response."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from mindrl.config.megatron_training import PLAIN
from mindrl.data.vocabulary import has_vocabulary
from mindrl.errors import ModelError
from mindrl.models.config_file import VOCABULARY_FILES
from mindrl.models.nested_text import text_part
from mindrl.observability.regular_files import read_regular_text

_ANSWER = "mindrl"
"""Placeholder answer to find what the template appends to an answer."""


def load_tokenizer(
    path: str, *, chat_template: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer with a chat template from a local Hugging Face folder.

    `chat_template` is `megatron_training.chat_template`: a file, `plain` for none, or None.

    Raises:
        ModelError: The folder is missing or unreadable, or has no vocabulary or chat template.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"tokenizer folder {path}: no such folder")
    if not has_vocabulary(path, trust_remote_code=trust_remote_code):
        need = f"needed one of {', '.join(VOCABULARY_FILES)}"
        raise ModelError(f"tokenizer folder {path}: no vocabulary; {need}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, LookupError, TypeError, ImportError) as error:
        wrong = f"cannot load it ({type(error).__name__}: {error})"
        raise ModelError(f"tokenizer folder {path}: {wrong}") from error
    if chat_template == PLAIN:
        tokenizer.chat_template = None
        return tokenizer
    if chat_template is not None:
        tokenizer.chat_template = _template(Path(chat_template))
    if not tokenizer.chat_template:
        raise ModelError(
            f"tokenizer folder {path} has no chat template (chat_template.jinja or "
            "chat_template in tokenizer_config.json). Set "
            f"megatron_training.chat_template to a template file, or to {PLAIN} for a "
            "base model, which reads prompts unchanged"
        )
    return tokenizer


def rendered_chat(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return messages as text by the chat template, up to the start of an answer.

    `tools` are the schemas of the tools that the template shows.

    Raises:
        TemplateError: The template rejects the messages.
    """
    text: Any = tokenizer.apply_chat_template(
        [*messages], tools=[*tools] or None, add_generation_prompt=True, tokenize=False
    )
    return str(text)


def _template(file: Path) -> str:
    try:
        return read_regular_text(file)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"megatron_training.chat_template={file}: cannot read it ({error})"
        ) from error


def stop_token_ids(
    tokenizer: PreTrainedTokenizerBase, model_path: str, more: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the ids of the tokens that end a response.

    They are the token that the chat template puts after an answer, the tokenizer's end of sequence,
    the ones that the model folder names for generation, and `more`. A base model's end of sequence
    often differs from the first.

    Raises:
        ModelError: There is none, the tokenizer does not have one of `more`, or the folder's file
            cannot be read.
    """
    for each in more:
        if each >= len(tokenizer):
            raise ModelError(
                f"generate_config.sampling_config.stop_token_ids: {each} is not a token "
                f"of {model_path}, which has {len(tokenizer)}"
            )
    found = {tokenizer.eos_token_id, _end_of_turn(tokenizer), *_named_for_generation(model_path)}
    ids = sorted((found | {*more}) - {None})
    if not ids:
        raise ModelError(
            f"tokenizer of {model_path} has no token that ends a response; add eos_token "
            "to tokenizer_config.json, eos_token_id to generation_config.json, or a "
            "special token after an answer in the chat template"
        )
    return tuple(ids)


def _end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the special token that the chat template puts after an answer, if any."""
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except TemplateError:
        return None
    _, found, tail = text.rpartition(_ANSWER)
    ids = tokenizer(tail.lstrip(), add_special_tokens=False)["input_ids"] if found else []
    added = tokenizer.added_tokens_decoder
    return ids[0] if ids and ids[0] in added and added[ids[0]].special else None


def _named_for_generation(model_path: str) -> list[int]:
    """Return `eos_token_id` of the first of two files that exists, as the engine does."""
    files = [Path(model_path, name) for name in ("generation_config.json", "config.json")]
    if not (file := next(filter(Path.is_file, files), None)):
        return []
    try:
        value: Any = text_part(json.loads(read_regular_text(file))).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"cannot read {file} ({error})") from error
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(each) is not int for each in ids):
        raise ModelError(f"{file}: eos_token_id is {value!r}; needed a number or a list of numbers")
    return ids


def plain_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that a tokenizer prepends without a template: at most a BOS token."""
    first: list[int] = tokenizer("")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] else []
