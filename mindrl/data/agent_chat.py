"""Token ids of the messages that an agent sends to its endpoint."""

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.data.inert_text import InertText
from mindrl.data.tokenizer import rendered_chat
from mindrl.data.turn_template import TurnTemplate

_MARK = "mindrlgave{}text"
_FOREIGN = ("tool", "user")
_Messages = Sequence[Mapping[str, Any]]


class AgentChat:
    """A tokenizer's chat template for agents; for one thread at a time.

    Texts of tools and users are encoded without control tokens.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stops: Collection[int], longest: int
    ) -> None:
        """Copy the tokenizer, which other threads use; `longest` limits the tokens of a message.

        Raises:
            ModelError: The chat template cannot have messages after an answer.
        """
        self._tokenizer, self._longest = copy.deepcopy(tokenizer), longest
        self._turns = TurnTemplate.of(self._tokenizer, stops, is_kept=False)
        self._inert = InertText(self._tokenizer)
        self.end = self._turns.end

    def render(self, messages: _Messages, tools: _Messages) -> list[int]:
        """Return the token ids of a history, up to the start of an answer.

        Raises:
            ValueError: The chat template refuses it, or leaves out a text.
        """
        texts = {
            at: each["content"]
            for at, each in enumerate(messages)
            if each["role"] in _FOREIGN and self._inert.is_needed(each["content"])
        }
        marked = [
            {**each, "content": _MARK.format(at)} if at in texts else each
            for at, each in enumerate(messages)
        ]
        try:
            rest = rendered_chat(self._tokenizer, marked, tools)
        except (TemplateError, TypeError) as error:
            raise ValueError(str(error)) from error
        found: list[int] = []
        for at, text in texts.items():
            head, mark, rest = rest.partition(_MARK.format(at))
            if not mark or _MARK.format(at) in rest:
                raise ValueError(f"message {at} is left out, repeated or moved")
            found += [*self.encode(head), *self._inert.token_ids(text)]
        return [*found, *self.encode(rest)]

    def after_turn(self, messages: _Messages) -> list[int] | None:
        """Return the token ids of results of tools, or of a user, after an answer.

        None if the template has no pieces for them.
        """
        roles = {each["role"] for each in messages}
        if roles != {"tool"} and (roles != {"user"} or len(messages) > 1):
            return None
        if not roles <= self._turns.pieces.keys():
            return None
        given = [(each["role"], each["content"]) for each in messages]
        return self._turns.after_turn(given, self._longest)

    def decode(self, token_ids: list[int]) -> str:
        """Return token ids as text, without special tokens."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text; added tokens in it are tokens."""
        plain = text.encode("utf-8", "replace").decode()
        token_ids: list[int] = self._tokenizer(plain, add_special_tokens=False)["input_ids"]
        return token_ids
