"""Roles allowed in a conversation."""

import difflib
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from mindrl.batch.prompts import ChatMessage
from mindrl.errors import DataError

_ROLES = ("system", "developer", "user", "assistant", "tool")
_OTHER_NAMES = {
    **dict.fromkeys(("human", "person", "customer", "question", "prompt"), "user"),
    **dict.fromkeys(("gpt", "bot", "ai", "chatgpt", "answer", "response"), "assistant"),
}
"""Names in other data sets, such as ShareGPT's."""


def check_roles(
    place: str, messages: Sequence[ChatMessage], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse a role that models do not know: most templates insert any text as the role.

    A role that the chat template itself names is accepted.

    Raises:
        DataError: With the role and the one that is probably meant.
    """
    template = tokenizer.chat_template
    named = template if isinstance(template, str) else ""
    for at, message in enumerate(messages, start=1):
        role = message["role"]
        if role not in _ROLES and not (f"'{role}'" in named or f'"{role}"' in named):
            near = _OTHER_NAMES.get(role.lower())
            near = near or next(iter(difflib.get_close_matches(role.lower(), _ROLES, n=1)), "user")
            raise DataError(
                f"{place}, message {at}: the role {role!r} must be one of {', '.join(_ROLES)}; "
                f"did you mean {near!r}?"
            )
