"""The grammar of allocation strings, and the errors for strings that it rejects.

Errors name the character, what is required, and what to write.
"""

import re
from collections.abc import Collection
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, NamedTuple

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from mindrl.config.backends import BACKENDS, TRAINING_BACKEND
from mindrl.errors import ConfigError

GRAMMAR = r"""
    one: alone
    alone: engine
    mode: group (_PLUS group)*
    group: engine (_BAR engine)*

    engine: NAME ["[" NAME "]"] JOINT sizes
          | NAME ["[" NAME "]"] JOINT "(" _ATTN sizes _BAR _FFN sizes ")"
          | BARE SIZE size* -> bare
    sizes: size+
    size: LETTER SIZE

    NAME: /[A-Za-z_][A-Za-z_0-9]*/
    JOINT: /[:.]/
    LETTER: /[a-z]/
    BARE.2: /[a-z](?=[0-9])/
    SIZE: /[0-9]+/
    _ATTN: "attn:"
    _FFN: "ffn:"
    _BAR: / *\| */
    _PLUS: / *\+ */
"""
"""One engine, or engines joined by `+` (separate devices) and `|` (shared devices)."""
AS_AREAL = ""
"""Stands for AReaL's default training backend: FSDP, or Megatron if stages or experts are
divided."""
_MISSING = {
    "NAME": "a name is missing, as in [actor]",
    "RSQB": "']' is missing after the name, as in [actor]",
    "JOINT": "':' is missing after the name, as in [actor]:d4t2",
    "_ATTN": "'attn:' is missing, as in (attn:d4t2|ffn:d2e4)",
    "_FFN": "'ffn:' is missing, as in (attn:d4t2|ffn:d2e4)",
}
"""Error text by the terminal that the parser expects."""
_ONE_ENGINE = re.compile(r"(?:\([^)]*\)|[^+|])*")
_WITHOUT_BACKEND = re.compile(r"(?:\[\w+\])?:?(?:(?:[a-z][0-9]+)+|\(attn:\w+\|ffn:\w+\))")
_LAST_WORD = re.compile(r"\w*$")
_OWNER_OF_SIZES = re.compile(r"(\w*)(?:\[\w*\])?[:.][^:.+|]*$")


class Word(NamedTuple):
    """A token of a string, and the index of its first character."""

    text: str
    at: int


WrittenSizes = tuple[tuple[Word, Word], ...]
"""Pairs of a letter and its digits."""


class EngineSpec(NamedTuple):
    """One parsed engine of a string, such as `megatron[actor]:d4t2`."""

    backend: Word | None
    """None if the string has sizes only."""
    name: Word | None
    joint: Word
    """A colon, or the point of the oldest form; empty before sizes without a backend."""
    sizes: WrittenSizes
    """Sizes of the whole model, or of all but its experts."""
    expert_sizes: WrittenSizes | None = None
    """Sizes after `ffn:`; None in the short form."""

    @property
    def at(self) -> int:
        """Index of its first character."""
        return (self.backend or self.joint).at


def read(
    text: str, start: Literal["one", "mode"], suggested: str
) -> tuple[tuple[EngineSpec, ...], ...]:
    """Parse one engine, or a `mode` of several: engines that share devices form one group.

    Raises:
        AllocationError: The text does not match the grammar; without a backend, the error proposes
            `suggested`.
    """
    try:
        tree = _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise _refusal(text, error, suggested) from None
    groups: tuple[tuple[EngineSpec, ...], ...] = _Words().transform(tree)
    return groups


class _Words(Transformer[Token, Any]):
    """Turns leaves into `Word`s and most rules into tuples."""

    def __default_token__(self, token: Token) -> Word:
        assert token.start_pos is not None, "every token has a position"
        return Word(str(token), token.start_pos)

    def __default__(self, _rule: object, children: list[Any], _meta: object) -> tuple[Any, ...]:
        return tuple(children)

    def engine(self, children: list[Any]) -> EngineSpec:
        return EngineSpec(*children)

    def bare(self, children: list[Any]) -> EngineSpec:
        letter, digits, *others = children
        nothing = Word("", letter.at)
        return EngineSpec(None, None, nothing, ((letter, digits), *others))


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", start=["one", "mode"], maybe_placeholders=True)


class AllocationError(ConfigError):
    """An allocation string that cannot be parsed; `str` marks the character with a caret."""

    def __init__(self, text: str, at: int, what: str, field: str = "") -> None:
        """Store what is required at index `at` of a text in `field`, such as `ref.backend`.

        An index equal to the text's length points after its end.
        """
        super().__init__(text, at, what, field)
        self.text, self.at, self.what, self.field = text, at, what, field

    @property
    def sentence(self) -> str:
        """The error in one line, without the caret."""
        where = f"{self.field}={self.text}" if self.field else self.text
        return f"{where}, character {self.at + 1}: {self.what}"

    def __str__(self) -> str:
        shown = "".join(each if each.isprintable() else "?" for each in self.text)
        return f"{self.sentence}\n  {shown}\n  {' ' * self.at}^"


def _refusal(text: str, error: UnexpectedInput, suggested: str) -> AllocationError:
    """Return the error for what the parser expects; `suggested` replaces a missing backend."""
    at, expected = _where(text, error)
    if "BARE" in expected:
        if text[at : at + 1].isspace():
            return AllocationError(text, at, "remove the space")
        return missing_backend(text, at, suggested)
    if "LSQB" in expected:
        return _missing_joint(text, at, suggested)
    if "SIZE" in expected or "LETTER" in expected:
        return _bad_sizes(text, at, expected, suggested)
    for terminal, what in _MISSING.items():
        if terminal in expected:
            return AllocationError(text, at, what)
    return _unexpected(text, at)


def missing_backend(text: str, at: int, backend: str) -> AllocationError:
    """Return the error for sizes without a backend, with a corrected string."""
    found = _ONE_ENGINE.match(text, at)
    rest = found.group().strip() if found else ""
    if not _WITHOUT_BACKEND.fullmatch(rest):
        rest = "d2t2"
    joint = "" if rest[0] in ":[" else ":"
    if backend == AS_AREAL:
        backend = TRAINING_BACKEND if re.search(r"[pe][0-9]|ffn", rest) else "fsdp"
    return AllocationError(text, at, f"the backend is missing; write {backend}{joint}{rest}")


def unknown_backend(text: str, at: int, backend: str) -> AllocationError:
    """Return the error for an unknown backend, with the nearest known one."""
    near = get_close_matches(backend.lower(), BACKENDS, n=1)
    fix = f"known: {', '.join(BACKENDS)}"
    if near:
        fix = f"write {text[:at]}{near[0]}{text[at + len(backend) :]}"
    return AllocationError(text, at, f"{backend!r} is not a backend; {fix}")


def unknown_dimension(text: str, at: int, place: str, letters: str) -> AllocationError:
    """Return the error for a letter that is no dimension of a backend, of attn or of ffn."""
    instead = f"; {TRAINING_BACKEND} has it" if place == "fsdp" and text[at] in "pev" else ""
    what = f"{text[at]!r} is not a dimension of {place}; known: {', '.join(letters)}{instead}"
    return AllocationError(text, at, what)


def _where(text: str, error: UnexpectedInput) -> tuple[int, Collection[str]]:
    """Return where the parser stopped, and the terminals that it accepts there."""
    if isinstance(error, UnexpectedToken):
        at = len(text) if error.token.type == "$END" else error.token.start_pos
        assert at is not None, "every token has a position"
        return at, error.expected
    assert isinstance(error, UnexpectedCharacters), "a text that ends is a token $END"
    assert error.pos_in_stream is not None, "it stopped somewhere"
    return error.pos_in_stream, error.allowed


def _missing_joint(text: str, at: int, suggested: str) -> AllocationError:
    """Return the error for a word without sizes or without a colon."""
    if text[at:].lstrip()[:1] not in ("", "|", "+"):
        return _unexpected(text, at)
    word = _LAST_WORD.findall(text[:at])[0]
    if word in BACKENDS:
        return AllocationError(text, at, f"{word} needs its sizes; write {word}:d2t2")
    return missing_backend(text, at - len(word), suggested)


def _bad_sizes(text: str, at: int, expected: Collection[str], suggested: str) -> AllocationError:
    """Return the error inside a list of sizes, by the backend or part that it belongs to."""
    owner = _OWNER_OF_SIZES.search(text[:at])
    if owner is None:
        sizes = re.split(r"[+|]", text[:at])[-1].lstrip()
        return missing_backend(text, at - len(sizes), suggested)
    place, found = owner[1], text[at : at + 1]
    if place not in (*BACKENDS, "attn", "ffn"):
        return unknown_backend(text, owner.start(), place)
    if "SIZE" in expected:
        return _missing_size(text, at)
    if text[at - 1] in ":." and found in ("", *"|+)"):
        return AllocationError(text, at, f"{place} needs a dimension, such as d2t2")
    if found and found not in "|+()[]:.":
        split = BACKENDS[_with_experts(text, at)]
        letters = {"attn": split.attn, "ffn": split.ffn}
        return unknown_dimension(text, at, place, letters.get(place) or BACKENDS[place].letters)
    return _unexpected(text, at)


def _missing_size(text: str, at: int) -> AllocationError:
    start = at - 1
    if text.startswith(("attn:", "ffn:"), start):
        backend = _with_experts(text, at)
        what = f"attn and ffn need brackets; write {backend}:(attn:d4t2|ffn:d2e4)"
        return AllocationError(text, start, what)
    letter = text[start]
    return AllocationError(text, at, f"{letter} needs a size from 1 to 99999, such as {letter}2")


def _unexpected(text: str, at: int) -> AllocationError:
    known = _backend_before(text, at)
    example = f"{known}:d4p2t2 or {known}:(attn:d4t2|ffn:d2e4)"
    if not BACKENDS[known].attn:
        example = "fsdp:d4t2" if known == "fsdp" else f"{known}:d2t4"
    if at == len(text):
        return AllocationError(text, at, f"the end is missing; write {example}")
    if text[at:].lstrip(" ")[:1] == "+":
        what = "'+' joins engines; write one engine here, and the others in their own backend keys"
        return AllocationError(text, text.index("+", at), what)
    return AllocationError(text, at, f"unexpected {text[at]!r}; write {example}")


def _with_experts(text: str, at: int) -> str:
    """Return the backend before a character if it supports expert sizes, else mindrl's default."""
    backend = _backend_before(text, at)
    return backend if BACKENDS[backend].attn else TRAINING_BACKEND


def _backend_before(text: str, at: int) -> str:
    """Return the last known backend before a character, else mindrl's default."""
    words = re.findall(r"[a-z]+", text[:at])
    return next((word for word in reversed(words) if word in BACKENDS), TRAINING_BACKEND)
