"""The grammar of allocation strings, and the words that they are made of. Judges nothing."""

from functools import cache
from typing import Any, Literal, NamedTuple

from lark import Lark, Token, Transformer, UnexpectedInput

from mindrl.allocation.messages import refusal

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
"""One engine, or engines joined by `+` (each on devices of its own) and `|` (on the same ones)."""


class Word(NamedTuple):
    """A word of a string, and the index of its first character."""

    text: str
    at: int


WrittenSizes = tuple[tuple[Word, Word], ...]
"""Letters, each with its digits."""


class EngineSpec(NamedTuple):
    """One engine as it stands in a string: `megatron[actor]:d4t2`."""

    backend: Word | None
    """None where only sizes stand; then there is no joint either."""
    name: Word | None
    joint: Word | None
    sizes: WrittenSizes
    """Of the whole model, or of all but its experts."""
    expert_sizes: WrittenSizes | None = None
    """Behind `ffn:`; None in the short form."""

    @property
    def at(self) -> int:
        """Where it begins."""
        return (self.backend or self.sizes[0][0]).at

    @property
    def sizes_at(self) -> int:
        """Where its sizes begin, or the bracket around them."""
        return self.joint.at + 1 if self.joint else self.at

    @property
    def old(self) -> bool:
        """Whether it has the point of the oldest form for a colon."""
        return self.joint is not None and self.joint.text == "."


def read(
    text: str, start: Literal["one", "mode"], suggested: str
) -> tuple[tuple[EngineSpec, ...], ...]:
    """Read one engine, or joined ones as in a `mode`: those that share devices are one group.

    Raises:
        AllocationError: The text is no such string; where it has no backend, `suggested` is
            proposed.
    """
    try:
        tree = _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise refusal(text, error, suggested) from None
    groups: tuple[tuple[EngineSpec, ...], ...] = _Words().transform(tree)
    return groups


class _Words(Transformer[Token, Any]):
    """Makes words of the leaves and tuples of most rules."""

    def __default_token__(self, token: Token) -> Word:
        assert token.start_pos is not None, "every token of a text has its place"
        return Word(str(token), token.start_pos)

    def __default__(self, _rule: object, children: list[Any], _meta: object) -> tuple[Any, ...]:
        return tuple(children)

    def engine(self, children: list[Any]) -> EngineSpec:
        return EngineSpec(*children)

    def bare(self, children: list[Any]) -> EngineSpec:
        letter, digits, *others = children
        return EngineSpec(None, None, None, ((letter, digits), *others))


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", start=["one", "mode"], maybe_placeholders=True)
