"""Parse a shell script into words and expand its variables; nothing is executed. Pure."""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from mindrl.errors import ConfigError

_MOST_LETTERS = 100_000
"""Longest value in characters: a script that doubles a variable per line would exhaust memory."""
_LARGEST = 1 << 63
"""Shells calculate with 64-bit integers."""
_PLAIN = re.compile(r"[^\s'\"\\$`;&|()<>]+")
_QUOTED_PLAIN = re.compile(r"[^\"\\$`]+")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_REDIRECTION = re.compile(r"&>>?|>\||<<<|<<-?|[<>]&?|>>")
_END = re.compile(r"&&|\|\||;;|[\n;&|()]")
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!]")
_PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+|[@*])(\[[@*]\])?(?::?[-=](.*)|)", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_ARGUMENTS = ("@", "*")
_GAP = "\0"
OPENING = ("if", "while", "until", "for", "case", "select", "{")
CLOSING = ("fi", "done", "esac", "}")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_INNER = ("then", "else", "elif", "do", "!", "time", "exec")
_PRECEDING = (*OPENING, *CLOSING, *_DECLARING, *_INNER)


@dataclass(frozen=True)
class ShellWord:
    """A word with its variables expanded."""

    spelled: str
    """Its text, with a NUL in place of each unknown part: no word of a shell contains one."""
    unknown: tuple[str, ...] = ()
    """Parts that cannot be read from the script, such as `$1` or `$(date)`, in order."""
    items: tuple["ShellWord", ...] | None = field(default=None, compare=False)
    """Elements of the array that the word assigns; None for other words."""
    assigns: bool = field(default=False, compare=False)
    """Whether the script sets a variable here: NAME=VALUE or NAME+=VALUE before a command."""

    def __add__(self, other: "ShellWord") -> "ShellWord":
        return ShellWord(self.spelled + other.spelled, (*self.unknown, *other.unknown))

    @property
    def text(self) -> str:
        """The text without its unknown parts."""
        return self.spelled.replace(_GAP, "")

    def split(self) -> list["ShellWord"]:
        """Return the parts between blanks, as a shell splits an unquoted value."""
        missing = iter(self.unknown)
        parts = re.split(r"\s+", self.spelled)
        return [ShellWord(part, tuple(islice(missing, part.count(_GAP)))) for part in parts]

    @property
    def precedes(self) -> bool:
        """Whether a command may follow the word."""
        return self.assigns or self.text in _PRECEDING


def _quotient(one: int, other: int) -> int:
    """Divide as a shell does: round towards zero."""
    quotient = abs(one) // abs(other)
    return quotient if (one < 0) == (other < 0) else -quotient


_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _quotient,
    ast.Mod: lambda one, other: one - other * _quotient(one, other),
}


class _Default(str):
    """The text after `:-`, which may contain variables."""

    __slots__ = ()


Variables = Mapping[str, tuple[ShellWord, ...]]
"""Value of each variable: one word, or the elements of an array."""


class Scanner:
    """Reads a script once, from its first command to its last.

    Each `$NAME` expands to the value in `variables` at the time the word is read, so the caller
    sets variables between the words.
    """

    def __init__(self, text: str, variables: Variables) -> None:
        """Start at the beginning of `text`."""
        self._text, self._variables = text.replace(_GAP, ""), variables
        self._at = 0
        self._documents: list[str] = []

    def commands(self) -> Iterator[tuple[str, Iterator[ShellWord]]]:
        """Yield each command's preceding separator and its words, which must be read at once."""
        separator = "\n"
        while self._at < len(self._text):
            yield separator, self._words()
            separator = self._take(_END)
            if separator == "\n":
                self._pass_documents()

    def _words(self) -> Iterator[ShellWord]:
        """Yield the words up to the next separator."""
        is_before = True
        while self._at < len(self._text):
            if self._take(_BLANK) or self._take(_COMMENT):
                continue
            if redirection := self._take(_REDIRECTION):
                self._pass_redirection(redirection)
            elif _END.match(self._text, self._at):
                return
            else:
                for word in self._word(is_before):
                    is_before = is_before and word.precedes
                    yield word

    def _word(self, is_before: bool = False) -> Iterator[ShellWord]:
        """Yield a word, or several if it is an array or an unquoted value with blanks.

        An assignment is a single word. It `is_before` the command, not an argument.
        """
        begin, current = self._at, ShellWord("")
        assigns = is_before and _ASSIGNMENT.match(self._text, begin) is not None
        while self._at < len(self._text) and not self._at_a_border():
            first, *others = self._piece() or [ShellWord("")]
            current += first
            for each in others:
                if assigns:
                    current += ShellWord(" ") + each
                else:
                    yield current
                    current = each
        raw = self._text[begin : self._at]
        if _ASSIGNMENT.fullmatch(raw) and self._text.startswith("(", self._at):
            current = ShellWord(raw, items=tuple(self._array()))
        letters = sum(len(each.spelled) + 1 for each in (current, *(current.items or ())))
        if letters > _MOST_LETTERS:
            raise ConfigError(f"a value of {letters} letters is too long to be read")
        # An unquoted variable without a value yields no word.
        if current.text or current.unknown or not raw.startswith("$"):
            yield replace(current, assigns=assigns)

    def _at_a_border(self) -> bool:
        return self._text[self._at] in " \t\r\n;&|()<>"

    def _array(self) -> Iterator[ShellWord]:
        """Yield the elements of an array; line ends do not end it."""
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._take(_BLANK) or self._take(_COMMENT) or self._take(_END):
                continue
            before = self._at
            yield from self._word()
            self._at += self._at == before
        self._at += 1

    def _piece(self) -> list[ShellWord]:
        """Read one part of a word: a quotation, a variable, or plain characters."""
        letter = self._text[self._at]
        if letter == "'":
            return [ShellWord(self._through("'", "'", self._at + 1))]
        if letter == '"':
            self._at += 1
            return self._quoted()
        if letter == "\\":
            self._at += 2
            # A word may continue on the next line.
            return [ShellWord(self._text[self._at - 1 : self._at].strip("\n"))]
        if letter in "$`":
            found = self._variable()
            if isinstance(found, _Default):
                return [*Scanner(found, self._variables)._words()]
            return [part for each in found for part in each.split()]
        return [ShellWord(self._take(_PLAIN))]

    def _quoted(self) -> list[ShellWord]:
        """Read up to the closing quotation mark; further elements of an array become words."""
        begin, found = self._at, [ShellWord("")]
        while self._at < len(self._text) and self._text[self._at] != '"':
            if plain := self._take(_QUOTED_PLAIN):
                found[-1] += ShellWord(plain)
            elif self._text[self._at] == "\\":
                found[-1] += ShellWord(_unescaped(self._text[self._at : self._at + 2]))
                self._at += 2
            else:
                first, *others = self._quoted_variable() or [ShellWord("")]
                found[-1] += first
                found += others
        if self._at >= len(self._text):
            raise ConfigError(self._no_end('"', begin - 1))
        self._at += 1
        return found

    def _quoted_variable(self) -> list[ShellWord]:
        """Read a variable between quotation marks; its value is not split."""
        found = self._variable()
        if not isinstance(found, _Default):
            return found
        # Remove the default's own quotation marks; keep the blanks.
        return Scanner(f'{found.replace(chr(34), "")}"', self._variables)._quoted()

    def _variable(self) -> "list[ShellWord] | _Default":
        """Read an expansion that starts with `$` or a backtick."""
        text, begin = self._text, self._at
        if text[begin] == "`":
            return [unknown_word(f"`{self._through('`', '`', begin + 1)}`")]
        if text.startswith("$((", begin):
            inner = self._through("(", ")", begin + 2)
            return [self._calculated(inner.removeprefix("(").removesuffix(")"))]
        if text.startswith("$(", begin):
            command = self._through("(", ")", begin + 2)
            is_pwd = command.strip() == "pwd"
            return [*self._value("PWD")] if is_pwd else [unknown_word(f"$({command})")]
        if text.startswith("${", begin):
            return self._parameter(self._through("{", "}", begin + 2))
        self._at += 1
        name = self._take(_NAME)
        return [*self._value(name)] if name else [ShellWord("$")]

    def _parameter(self, inner: str) -> "list[ShellWord] | _Default":
        """Return the value of `NAME`, `NAME:-DEFAULT` or `NAME[@]`, or the unread default."""
        found = _PARAMETER.fullmatch(inner)
        if found is None:
            # Such as `${@:2}`: there are no arguments.
            return [] if inner[:1] in _ARGUMENTS else [unknown_word(f"${{{inner}}}")]
        name, index, default = found.groups()
        value = self._variables.get(name)
        if default is not None and not any(each.text or each.unknown for each in value or ()):
            return _Default(default)
        return [*self._value(name)][: None if index or name in _ARGUMENTS else 1]

    def _value(self, name: str) -> tuple[ShellWord, ...]:
        """Return the words of a variable; the script is taken to be started without arguments."""
        if name in _ARGUMENTS:
            return ()
        return self._variables.get(name, (unknown_word(f"${name}"),))

    def _calculated(self, formula: str) -> ShellWord:
        """Return the value of an integer formula."""
        (word,) = Scanner(f'{formula}"', self._variables)._quoted()
        try:
            tree = ast.parse(word.text.strip().replace("/", "//"), mode="eval").body
            return word if word.unknown else self._number(tree)
        except (SyntaxError, ValueError, ArithmeticError, RecursionError):
            return unknown_word(f"$(({formula}))")

    def _number(self, node: ast.expr) -> ShellWord:
        """Return the value of a part of a formula; raises ValueError if it is not an integer."""
        match node:
            case ast.Constant(value=int(number)):
                return ShellWord(str(number))
            case ast.Name(id=name):
                (word,) = self._value(name)
                return word if word.unknown else ShellWord(str(int(word.text)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                word = self._number(operand)
                return word if word.unknown else ShellWord(str(-int(word.text)))
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
                one, other = self._number(left), self._number(right)
                if unknown := (*one.unknown, *other.unknown):
                    return ShellWord(_GAP * len(unknown), unknown)
                number = _ARITHMETIC[type(sign)](int(one.text), int(other.text))
                if abs(number) < _LARGEST:
                    return ShellWord(str(number))
        raise ValueError(ast.unparse(node))

    def _through(self, opening: str, closing: str, begin: int) -> str:
        """Return the text from `begin` to the closing mark, and advance past it."""
        depth, at = 1, begin
        while at < len(self._text):
            letter = self._text[at]
            if letter == "\\" and closing != "'":
                at += 1
            elif letter == closing:
                depth -= 1
            elif letter == opening:
                depth += 1
            if not depth:
                self._at = at + 1
                return self._text[begin:at]
            at += 1
        raise ConfigError(self._no_end(opening, begin - 1))

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Return the match of a pattern at the current position and advance; empty if none."""
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def _pass_redirection(self, kind: str) -> None:
        """Advance past the file of a redirection; store the mark that ends a here-document."""
        self._take(_BLANK)
        target = "".join(each.text for each in self._word())
        if kind in ("<<", "<<-"):
            self._documents.append(target)

    def _pass_documents(self) -> None:
        """Advance past the here-documents of a command."""
        for mark in self._documents:
            end = re.compile(rf"^\t*{re.escape(mark)}$", re.MULTILINE).search(self._text, self._at)
            self._at = end.end() if end else len(self._text)
        self._documents.clear()

    def _no_end(self, opening: str, begin: int) -> str:
        return f"line {self._text.count(chr(10), 0, begin) + 1}: {opening} has no end"


def unknown_word(what: str, before: str = "") -> ShellWord:
    """Return a word of which only the text before an unknown part is known."""
    return ShellWord(f"{before}{_GAP}", (" ".join(what.split()),))


def _unescaped(pair: str) -> str:
    """Return the meaning of a backslash and a character between double quotation marks."""
    if pair == "\\\n":
        return ""
    return pair[1:] if pair[1:] in ("$", '"', "\\", "`") else pair
