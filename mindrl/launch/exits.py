"""How every program ends: an exit code, and on stderr the reasons in words."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

FAILED = 1
BAD_CONFIG = 2
INTERRUPTED = 130


def report(reasons: Iterable[str], code: int) -> int:
    """Print the reasons, one a line, and return the exit code."""
    console = Console(stderr=True)
    for reason in reasons:
        console.print(f"[bold red]error:[/] {escape(reason)}", soft_wrap=True, highlight=False)
    return code
