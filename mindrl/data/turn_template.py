"""Token ids that a chat template writes around the messages of an environment.

They are read once from renderings with markers. Tokens that the policy wrote are never rendered
or encoded again, and text of an environment never goes through the template.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.data.inert_text import InertText
from mindrl.data.tokenizer import rendered_chat
from mindrl.errors import ModelError

_WRITTEN = "mindrlwrote"
_GIVEN = ("mindrlgavea", "mindrlgaveb")
_QUESTION = {"role": "user", "content": "?"}
ChatMessages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class _Pieces:
    """Token ids around the messages of one role."""

    before: Sequence[int]
    """Between the end token of a turn and the first message."""
    between: Sequence[int]
    """Between two messages."""
    after: Sequence[int]
    """After the last message, up to the next turn of the policy."""


@dataclass(frozen=True, kw_only=True)
class TurnTemplate:
    """How messages of an environment follow a turn of the policy."""

    end: int
    """The token that ends a turn, after which messages may follow."""
    pieces: Mapping[str, _Pieces]
    """By role; a role that the template refuses is missing."""
    text: InertText
    tokenizer: PreTrainedTokenizerBase
    tools: Sequence[Mapping[str, Any]]

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        stops: Collection[int],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Self:
        """Read a tokenizer's chat template; `stops` are the tokens that end a response.

        Raises:
            ModelError: No token ends a turn, or messages cannot follow one.
        """
        found = _Reader(tokenizer, stops, tools)
        pieces = {}
        for role in ("tool", "user"):
            try:
                pieces[role] = found.pieces(role)
            except (TemplateError, TypeError) as error:
                if role == "user":
                    raise ModelError(f"the chat template refuses a second turn: {error}") from error
        return cls(
            end=found.end(),
            pieces=pieces,
            text=InertText(tokenizer),
            tokenizer=tokenizer,
            tools=tools,
        )

    def after_turn(self, messages: Sequence[tuple[str, str]], longest: int) -> list[int]:
        """Return the token ids of messages after a turn: pairs of role and text of one role.

        Each text is cut to `longest` tokens.
        """
        pieces = self.pieces[messages[0][0]]
        found = [*pieces.before]
        for place, (_, text) in enumerate(messages):
            found += [*(pieces.between if place else ()), *self._cut(text, longest)]
        return [*found, *pieces.after]

    def opening(self, messages: ChatMessages, text: str) -> list[int]:
        """Return the token ids of a prompt with a text from outside at its end."""
        *before, last = messages
        marked = [*before, {**last, "content": f"{last['content']}{_GIVEN[0]}"}]
        rendered = rendered_chat(self.tokenizer, marked, self.tools)
        head, tail = (_ids(self.tokenizer, each) for each in rendered.split(_GIVEN[0], 1))
        return [*head, *self.text.token_ids(text), *tail]

    def _cut(self, text: str, longest: int) -> list[int]:
        # No token has more than some 30 bytes of ordinary text: encode no more than can be used.
        return self.text.token_ids(text[: 32 * longest])[:longest]


class _Reader:
    """Renders conversations with markers."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stops: Collection[int],
        tools: Sequence[Mapping[str, Any]],
    ) -> None:
        self.tokenizer, self.tools = tokenizer, tools
        words = tokenizer.convert_ids_to_tokens([*stops])
        self.stops = dict(zip(words, stops, strict=True))

    def end(self) -> int:
        """Return the token that ends a turn."""
        found: int = self.stops[self._end_word(self._tail([_QUESTION], "user"))]
        return found

    def pieces(self, role: str) -> _Pieces:
        """Return the token ids around messages of a role; the same at any depth.

        Raises:
            ModelError: They depend on earlier turns, or the template leaves a message out.
        """
        short = self._cut(self._tail([_QUESTION], role))
        earlier = [_QUESTION, {"role": "assistant", "content": "!"}, {"role": role, "content": "."}]
        if role == "tool":
            earlier += [{"role": "assistant", "content": "!!"}, _QUESTION]
        else:
            earlier[-1] = {"role": "user", "content": "??"}
        if self._cut(self._tail(earlier, role)) != short:
            raise ModelError(f"the chat template writes messages of role {role} by their depth")
        before, between, after = (_ids(self.tokenizer, each) for each in short)
        return _Pieces(before, between, after)

    def _tail(self, before: ChatMessages, role: str) -> str:
        """Return what follows a turn of the policy, up to its next turn."""
        written = {"role": "assistant", "content": _WRITTEN}
        given = [{"role": role, "content": each} for each in _GIVEN]
        if role == "user":
            given = given[:1]
        rendered = rendered_chat(self.tokenizer, [*before, written, *given], self.tools)
        _, found, tail = rendered.rpartition(_WRITTEN)
        if not found:
            raise ModelError("the chat template leaves out a turn of the assistant")
        return tail

    def _end_word(self, tail: str) -> str:
        places = {tail.find(word): word for word in self.stops if word in tail}
        if not places or (first := min(places)) > tail.find(_GIVEN[0]):
            raise ModelError("the chat template writes no token that ends a turn")
        return str(places[first])

    def _cut(self, tail: str) -> list[str]:
        """Return the texts before, between and after the messages."""
        end = self._end_word(tail)
        rest = tail[tail.index(end) + len(end) :]
        places = [(rest.find(each), len(each)) for each in _GIVEN if each in rest]
        if not places:
            raise ModelError("the chat template leaves out a message of the environment")
        ends = [(0, 0), *places, (len(rest), 0)]
        found = [rest[at + width : next_] for (at, width), (next_, _) in pairwise(ends)]
        return found if len(found) == 3 else [found[0], "", found[1]]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
