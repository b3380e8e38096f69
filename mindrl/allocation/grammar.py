"""The grammar of allocation strings, and the parts of a string as they stand in it.

What the parts mean is judged in `part_layouts` and `model_allocation`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from mindrl.allocation.refusals import refusal

GRAMMAR = r"""
    engine: part
    mode: group (_PLUS group)*
    group: part (_BAR part)*

    part: NAME ["[" NAME "]"] JOINT (sizes | hybrid)
        | bare
    hybrid: "(" _ATTN sizes _BAR _FFN sizes ")"
    sizes: size+
    size: LETTER SIZE
    bare: BARE SIZE size*

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
"""One engine, or engines joined by `+` (each on devices of its own) and `|` (on the same ones)."""


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """A letter and its size, as digits."""

    letter: str
    digits: str
    at: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """One engine of a string: `megatron[actor]:d4t2`."""

    at: int
    backend: str | None
    """None where only sizes stand."""
    name: str | None
    name_at: int
    joint: Literal[":", ".", ""]
    joint_at: int
    sizes: tuple[Dimension, ...]
    """Of the whole model, or of all but its experts."""
    expert_sizes: tuple[Dimension, ...] | None
    """Behind `ffn:`; None in the short form."""


def read_engine(text: str, suggested: str) -> Part:
    """Read a string of one engine.

    Args:
        text: For example `megatron:d4t2`.
        suggested: The backend that errors propose where the text has none.

    Raises:
        AllocationError: The text is no such string.
    """
    ((part,),) = _read(text, "engine", suggested)
    return part


def read_mode(text: str, suggested: str) -> tuple[tuple[Part, ...], ...]:
    """Read a string of several engines; returns those that share devices as one group.

    Args:
        text: For example `sglang:d4t2+fsdp:d8`.
        suggested: The backend that errors propose where the text has none.

    Raises:
        AllocationError: The text is no such string.
    """
    return _read(text, "mode", suggested)


class _Parts(Transformer[Token, Any]):
    """Builds parts from the leaves up; judges nothing, for lark would wrap the errors."""

    def engine(self, children: list[Part]) -> tuple[tuple[Part, ...], ...]:
        return (tuple(children),)

    def mode(self, children: list[tuple[Part, ...]]) -> tuple[tuple[Part, ...], ...]:
        return tuple(children)

    def group(self, children: list[Part]) -> tuple[Part, ...]:
        return tuple(children)

    def part(self, children: list[Any]) -> Part:
        if len(children) == 1:
            return children[0]  # type: ignore[no-any-return]
        backend, name, joint, (sizes, expert_sizes) = children
        return Part(
            at=backend.start_pos,
            backend=str(backend),
            name=name and str(name),
            name_at=name.start_pos if name else backend.end_pos,
            joint=joint.value,
            joint_at=joint.start_pos,
            sizes=sizes,
            expert_sizes=expert_sizes,
        )

    def bare(self, children: list[Any]) -> Part:
        first = self.size(children[:2])
        return Part(
            at=first.at,
            backend=None,
            name=None,
            name_at=first.at,
            joint="",
            joint_at=first.at,
            sizes=(first, *children[2:]),
            expert_sizes=None,
        )

    def hybrid(self, children: list[Any]) -> tuple[tuple[Dimension, ...], tuple[Dimension, ...]]:
        (dense, _), (expert, _) = children
        return dense, expert

    def sizes(self, children: list[Dimension]) -> tuple[tuple[Dimension, ...], None]:
        return tuple(children), None

    def size(self, children: list[Token]) -> Dimension:
        letter, digits = children
        assert letter.start_pos is not None, "every token of a text has its place"
        return Dimension(letter=str(letter), digits=str(digits), at=letter.start_pos)


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", start=["engine", "mode"], maybe_placeholders=True)


def _read(text: str, start: str, suggested: str) -> tuple[tuple[Part, ...], ...]:
    try:
        tree = _parser().parse(text, start=start)
    except UnexpectedInput as error:
        at, expected = _place_of(text, error)
        raise refusal(text, at, expected, suggested) from None
    parts: tuple[tuple[Part, ...], ...] = _Parts().transform(tree)
    return parts


def _place_of(text: str, error: UnexpectedInput) -> tuple[int, Collection[str]]:
    """Return where the parser stopped, and the terminals that it would have taken there."""
    if isinstance(error, UnexpectedToken):
        at = len(text) if error.token.type == "$END" else error.token.start_pos
        expected: Collection[str] = error.expected
    else:
        assert isinstance(error, UnexpectedCharacters), "a text that ends is a token $END"
        at, expected = error.pos_in_stream, error.allowed
    assert at is not None, "every token of a text has its place"
    return at, expected
