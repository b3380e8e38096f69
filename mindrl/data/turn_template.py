"""Token ids that a chat template writes around the messages of an environment.

They are read once from renderings with markers. Tokens that the policy wrote are never rendered
or encoded again, unless `environment_config.history` is `rendered`. Text of an environment never
goes through the template. A picture has one token here: the one that stands for its parts.
"""

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from mindrl.data.inert_text import InertText
from mindrl.data.row_images import MARK, with_parts
from mindrl.data.tokenizer import rendered_chat
from mindrl.errors import DataError, ModelError

_WRITTEN = "mindrlwrote"
_GIVEN = ("mindrlgavea", "mindrlgaveb")
_RENDERED = "set environment_config.history=rendered"
_QUESTION = {"role": "user", "content": "?"}
_PICTURE = {"type": "image"}
ChatMessages = Sequence[Mapping[str, Any]]
GivenText = str | Sequence[str]
"""A text, or pieces of one with a picture between two pieces."""
TurnTexts = Sequence[tuple[str, Sequence[tuple[str, str]]]]


@dataclass(frozen=True)
class _Pieces:
    """Token ids around the messages of one role."""

    before: Sequence[int]
    """Between the end token of a turn and the first message."""
    between: Sequence[int]
    """Between two messages."""
    after: Sequence[int]
    """After the last message, up to the next turn of the policy."""


class _Foreign:
    """Markers that stand for texts while the template renders them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        # Random, so that no text of a policy or of the data contains it.
        self._name = f"mindrl{secrets.token_hex(8)}text"

    def marker(self, text: str) -> str:
        """Return the marker of a text."""
        self.texts.append(text)
        return f"{self._name}{len(self.texts) - 1}end"

    def split(self, rendered: str) -> list[str]:
        """Cut a rendered text at its markers: text, index of a marker, text, ..."""
        return re.split(rf"{self._name}(\d+)end", rendered)


@dataclass(frozen=True, kw_only=True)
class TurnTemplate:
    """How messages of an environment follow a turn of the policy."""

    end: int | None
    """The token that ends a turn, after which messages may follow. None: the template has none."""
    pieces: Mapping[str, _Pieces]
    """Pieces by role; a role that the template refuses is missing."""
    is_kept: bool
    """Whether messages always follow the tokens so far; otherwise they do only if the template
    renders the whole history to the same text."""
    text: InertText
    tokenizer: PreTrainedTokenizerBase
    pictures: Mapping[str, Sequence[int]] | None = None
    """Token ids of a picture in a message, by role; a role without pictures is missing. None for a
    model that reads none."""

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        stops: Collection[int],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        is_kept: bool = True,
        image_token: int | None = None,
    ) -> Self:
        """Read a tokenizer's chat template; `stops` are the tokens that end a response.

        `image_token` stands for a part of a picture; None for a model that reads none.

        Raises:
            ModelError: No token ends a turn, or messages cannot follow one, and the history is not
                rendered either.
        """
        found, end = _Reader(tokenizer, stops, tools), None
        pieces = {}
        for role in ("tool", "user"):
            try:
                pieces[role] = found.pieces(role)
            except (TemplateError, TypeError) as error:
                if role == "user":
                    raise ModelError(f"the chat template refuses a second turn: {error}") from error
            except ModelError as error:
                if is_kept:
                    raise ModelError(f"{error}; {_RENDERED}") from error
        try:
            end = found.end()
        except ModelError as error:
            if is_kept:
                raise ModelError(f"{error}; {_RENDERED}") from error
        return cls(
            end=end,
            pieces=pieces,
            is_kept=is_kept,
            text=InertText(tokenizer),
            tokenizer=tokenizer,
            pictures=None if image_token is None else found.pictures(pieces, image_token),
        )

    def has_role(self, role: str) -> bool:
        """Return whether the chat template has messages of a role."""
        given = [_QUESTION, {"role": "assistant", "content": "!"}]
        try:
            rendered_chat(self.tokenizer, [*given, {"role": role, "content": "."}])
        except (TemplateError, TypeError):
            return False
        return True

    def after_turn(self, messages: Sequence[tuple[str, GivenText]], longest: int) -> list[int]:
        """Return the token ids of messages after a turn: pairs of role and text of one role.

        Each text is cut to `longest` tokens, and keeps all of its pictures.

        Raises:
            DataError: Messages of this role cannot have pictures, and there are some.
        """
        pieces = self.pieces[messages[0][0]]
        found = [*pieces.before]
        for place, (role, text) in enumerate(messages):
            found += [*(pieces.between if place else ()), *self._content(role, text, longest)]
        return [*found, *pieces.after]

    def content(self, role: str, given: list[int]) -> list[int]:
        """Return the token ids of the messages alone, given the token ids after a turn."""
        pieces = self.pieces[role]
        return given[len(pieces.before) : len(given) - len(pieces.after)]

    def opening(
        self, messages: ChatMessages, text: GivenText, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the token ids of a prompt with a text from outside at its end.

        Raises:
            DataError: As `after_turn`.
        """
        foreign, pieces = _Foreign(), _pieces_of(text)
        *before, last = messages
        self._require_pictures(last["role"], pieces)
        added = MARK.join(map(foreign.marker, pieces))
        opened: ChatMessages = [*before, {**last, "content": f"{last['content']}{added}"}]
        if self.pictures is not None:
            opened = [*map(with_parts, opened)]
        return self._encoded(opened, foreign, None, tools)

    def history(
        self,
        messages: ChatMessages,
        opening: str | None,
        turns: TurnTexts,
        longest: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the token ids of a whole conversation, rendered anew.

        Each turn is the text of the policy, and role and text of each message that follows. Those
        texts are cut to `longest` tokens.
        """
        foreign = _Foreign()
        whole: list[Mapping[str, Any]] = [*messages]
        if opening is not None:
            whole[-1] = {**whole[-1], "content": f"{whole[-1]['content']}{foreign.marker(opening)}"}
        for written, given in turns:
            # A policy may spell out a control token; its words stay text.
            inert = self._control.sub(lambda found: foreign.marker(found.group()), written)
            whole.append({"role": "assistant", "content": inert})
            whole += [{"role": role, "content": foreign.marker(text)} for role, text in given]
        return self._encoded(whole, foreign, longest, tools)

    def is_same_text(self, one: Sequence[int], other: Sequence[int]) -> bool:
        """Return whether two lists of token ids are the same text."""
        return bool(self.tokenizer.decode([*one]) == self.tokenizer.decode([*other]))

    @cached_property
    def _control(self) -> re.Pattern[str]:
        added = self.tokenizer.added_tokens_decoder.values()
        words = sorted({each.content for each in added if each.special}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, filter(None, words))) or "(?!)")

    def _encoded(
        self,
        messages: ChatMessages,
        foreign: _Foreign,
        longest: int | None,
        tools: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """Render messages with markers, and encode the text of each marker by itself."""
        rendered, found = rendered_chat(self.tokenizer, messages, tools), list[int]()
        for place, part in enumerate(foreign.split(rendered)):
            if place % 2 == 0:
                found += _ids(self.tokenizer, part) if part else []
            elif longest is None:
                found += self.text.token_ids(foreign.texts[int(part)])
            else:
                found += self._cut(foreign.texts[int(part)], longest)
        return found

    def _content(self, role: str, text: GivenText, longest: int) -> list[int]:
        first, *rest = _pieces_of(text)
        self._require_pictures(role, (first, *rest))
        found = self._cut(first, longest)
        left = longest - len(found)
        for piece in rest:
            ids = self._cut(piece, left)
            found, left = [*found, *(self.pictures or {})[role], *ids], left - len(ids)
        return found

    def _require_pictures(self, role: str, pieces: Sequence[str]) -> None:
        if len(pieces) > 1 and role not in (self.pictures or {}):
            need = "set megatron_training.chat_template to one that does"
            raise DataError(
                f"the chat template writes no pictures in messages of role {role}; {need}"
            )

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

    def pictures(self, roles: Collection[str], image_token: int) -> Mapping[str, Sequence[int]]:
        """Return the token ids of a picture in messages of each role that has pictures."""
        found = {role: _ids(self.tokenizer, self._picture(role)) for role in roles}
        return {role: ids for role, ids in found.items() if ids.count(image_token) == 1}

    def _picture(self, role: str) -> str:
        """Return the text for a picture at any place in a message of a role.

        Empty if the template refuses pictures there, or writes them differently by place.
        """
        one, other = ({"type": "text", "text": each} for each in _GIVEN)
        shown = [_PICTURE, one, _PICTURE, _PICTURE, other, _PICTURE]
        try:
            _, text, _ = self._cut(self._tail([_QUESTION], role, [[one, _PICTURE, other]]))
            before, _, after = self._cut(self._tail([_QUESTION], role))
            expected = [before, text, _GIVEN[0], text, text, _GIVEN[1], text, after]
            tail = self._tail([_QUESTION], role, [shown])
        except (TemplateError, TypeError, ModelError):
            return ""
        return text if tail.endswith("".join(expected)) else ""

    def _tail(
        self, before: ChatMessages, role: str, contents: Sequence[object] | None = None
    ) -> str:
        """Return the text after a turn of the policy, up to its next turn.

        `contents` are the contents of the messages there; None for markers.
        """
        written = {"role": "assistant", "content": _WRITTEN}
        if contents is None:
            contents = _GIVEN[:1] if role == "user" else _GIVEN
        given = [{"role": role, "content": each} for each in contents]
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


def _pieces_of(text: GivenText) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
