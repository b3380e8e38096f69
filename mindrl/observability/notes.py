"""What a user should know though nothing is wrong."""

from rich.console import Console
from rich.markup import escape


def note(text: str) -> None:
    """Print what a user should know though nothing is wrong, on stderr."""
    line = f"[bold yellow]note:[/] {escape(text)}"
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)
