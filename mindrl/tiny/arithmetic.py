r"""Two-digit additions, and three habits of answering them.

- careful:  "7+8=15, 4+3+1=8, \boxed{85}"   each column, with the carry
- careless: "7+8=15, 4+3=7, \boxed{75}"     each column, the carry forgotten
- hasty:    "\boxed{75}"                    no work, the carry forgotten
"""

import re
from typing import NamedTuple

OPERANDS = range(10, 100)
_WORDING = re.compile(r"(\d\d)\+(\d\d)=\?")


class Question(NamedTuple):
    """An addition of two numbers of two digits."""

    left: int
    right: int

    @property
    def sum(self) -> int:
        """The right answer."""
        return self.left + self.right

    @property
    def units(self) -> int:
        """The sum of the units column."""
        return self.left % 10 + self.right % 10

    @property
    def tens(self) -> int:
        """The sum of the tens column, without a carry."""
        return self.left // 10 + self.right // 10

    @property
    def needs_carry(self) -> bool:
        """Tell whether the units column overflows."""
        return self.units > 9

    @property
    def prompt(self) -> str:
        """The question as the user words it."""
        return f"{self.left}+{self.right}=?"


def parse_prompt(text: str) -> Question:
    """Read a question back from its wording.

    Raises:
        ValueError: The text is no such question.
    """
    match = _WORDING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a question like '12+35=?'")
    return Question(int(match[1]), int(match[2]))


def careful_answer(question: Question) -> str:
    """Add column by column, with the carry."""
    return ", ".join(columns(question, carry=question.units // 10))


def columns(question: Question, *, carry: int) -> list[str]:
    """Return the steps of an addition column by column, with a carry that may be wrong."""
    left, right = question
    units = f"{left % 10}+{right % 10}={question.units}"
    tens = f"{left // 10}+{right // 10}+{carry}={question.tens + carry}"
    return [units, tens, boxed((question.tens + carry) * 10 + question.units % 10)]


def careless_answer(question: Question) -> str:
    """Add column by column, and forget the carry."""
    left, right = question
    tens = f"{left // 10}+{right // 10}={question.tens}"
    return f"{left % 10}+{right % 10}={question.units}, {tens}, {hasty_answer(question)}"


def hasty_answer(question: Question) -> str:
    """Answer at once, and forget the carry."""
    return boxed(question.tens * 10 + question.units % 10)


def boxed(number: int) -> str:
    """Mark a number as the final answer."""
    return f"\\boxed{{{number}}}"
