"""What programs show on a terminal: lines, rows, notes; the text of others made safe."""

import unicodedata
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print lines as they are, however long."""
    console = Console(stderr=to_stderr)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def print_rows(rows: Iterable[Sequence[str]], *columns: Column) -> None:
    """Print rows of markup below each other, with a line of titles where the columns have any."""
    titled = any(column.header for column in columns)
    table = Table(*columns, box=None, show_header=titled, header_style="", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def note(text: str) -> None:
    """Print what a user should know though nothing is wrong, on stderr."""
    line = f"[bold yellow]note:[/] {escape(text)}"
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    r"""Spell out, as `\x1b`, every character that could command a terminal or hide text.

    Those are Unicode's "Other" (control, format such as right-to-left override, lone
    surrogates, unassigned) and its line and paragraph separators. Newlines and tabs stay.
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char).startswith(("C", "Zl", "Zp")) and char not in "\n\t"
        else char
        for char in text
    )
