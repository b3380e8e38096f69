"""Progress of a long search or simulation on a terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_QUIET_SECONDS = 1.0


@contextmanager
def search_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text and the elapsed time, after a short delay."""
    began, console = time.monotonic(), Console(stderr=True)
    columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    progress = Progress(*columns, console=console, transient=True)
    bar = progress.add_task("")
    shown = False

    def notify(text: str) -> None:
        nonlocal shown
        progress.update(bar, description=text)
        if not shown and console.is_terminal and time.monotonic() - began > _QUIET_SECONDS:
            shown = True
            progress.start()

    try:
        yield notify
    finally:
        if shown:
            progress.stop()
