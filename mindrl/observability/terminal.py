"""Terminal output of programs: lines, rows, notes; foreign text is made safe."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

_WIDEST = 1 << 16
"""Columns of a table that no terminal shows."""


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print lines unchanged, without wrapping."""
    console = Console(stderr=to_stderr)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def print_rows(rows: Iterable[Sequence[str]], *columns: Column) -> None:
    """Print rows of markup as a table, with a header if the columns have any."""
    titled = any(column.header for column in columns)
    table = Table(*columns, box=None, show_header=titled, header_style="", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console = Console()
    # A pipe or a file has no width to wrap at.
    wide = console if console.is_terminal else Console(width=_WIDEST)
    wide.print(table)


class _Absent:
    """A value that a row lacks."""

    def __repr__(self) -> str:
        return "-"

    def __format__(self, spec: str) -> str:
        return "-"


def print_table(rows: Iterable[Mapping[str, object]], columns: Mapping[str, str]) -> None:
    """Print rows of a JSON answer as a table; None is shown as `-`.

    `columns` maps each title to the format of its cells, such as `{step}/{steps}`. Columns of
    formatted numbers, such as `{reward:.3f}`, are justified to the right.
    """
    absent = _Absent()
    shown = ({name: absent if row[name] is None else row[name] for name in row} for row in rows)
    print_rows(
        ([escape(printable(cell.format_map(row))) for cell in columns.values()] for row in shown),
        *(
            Column(title, overflow="fold", justify="right" if ":" in cell else "left")
            for title, cell in columns.items()
        ),
    )


def note(text: str) -> None:
    """Print information for the user on stderr; it is not an error."""
    line = f"[bold yellow]note:[/] {escape(text)}"
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)


def printable(text: str) -> str:
    r"""Escape, as `\x1b`, every character that could control a terminal or hide text.

    These are Unicode's "Other" (control, format such as right-to-left override, lone surrogates,
    unassigned) and its line and paragraph separators. Newlines and tabs are kept.
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char).startswith(("C", "Zl", "Zp")) and char not in "\n\t"
        else char
        for char in text
    )
