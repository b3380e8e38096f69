"""How every program answers and ends: text or JSON, an exit code, on stderr the reasons."""

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from mindrl.errors import ConfigError, InterruptedRunError, MindrlError
from mindrl.observability.terminal import printable

FAILED = 1
BAD_CONFIG = 2
INTERRUPTED = 130
MOST_SHOWN = 10
"""Findings that are printed, unless all are asked for."""
_SHOWN_BYTES = 4000
"""Of what was kept back when something failed."""


def exit_code(
    action: Callable[[], int], *bad_input: type[Exception], shows_all: bool = False
) -> int:
    """Run, and turn an error that was raised on purpose into words and an exit code.

    `bad_input` are errors that speak of what the program was given, besides `ConfigError`. Of many
    reasons the first ten are printed, and all with `shows_all`.
    """
    try:
        return action()
    except MindrlError as error:
        code = FAILED
        if isinstance(error, InterruptedRunError):
            code = INTERRUPTED
        elif isinstance(error, (ConfigError, *bad_input)):
            code = BAD_CONFIG
        reasons = str(error).splitlines()
        return report(reasons if shows_all else first_reasons(reasons), code)


def first_reasons(reasons: Sequence[str]) -> list[str]:
    """Return the first ten reasons and a line that counts the others.

    A line that begins with a blank goes on with the reason before it.
    """
    begins = [at for at, reason in enumerate(reasons) if not reason.startswith(" ")]
    if len(begins) <= MOST_SHOWN:
        return [*reasons]
    return [*reasons[: begins[MOST_SHOWN]], f" {rest_of(len(begins))}"]


def rest_of(number: int) -> str:
    """Count what is not shown of so many findings, and say where it is."""
    return f"and {number - MOST_SHOWN} more; mindrl check --all shows them"


def report(reasons: Iterable[str], code: int) -> int:
    """Print reasons, one a line, and return the code; one with blanks before it goes on."""
    console = Console(stderr=True)
    for reason in reasons:
        mark = "       " if reason.startswith(" ") else "[bold red]error:[/] "
        console.print(f"{mark}{escape(reason)}", soft_wrap=True, highlight=False)
    return code


def counted(number: int, what: str) -> str:
    """Spell how many there are of something."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def written(path: str, *, names_folder: bool = True) -> str:
    """Say which configuration was written, and which command would check it."""
    file = Path(path)
    folder = f"--config-dir {file.parent} " if names_folder else ""
    return f"written: {path}; next: mindrl check {folder}--config-name {file.stem} --elsewhere"


@contextmanager
def stdout_unspoilt() -> Iterator[None]:
    """Send to stderr what anybody prints meanwhile, compiled code of a vendor's included."""
    _flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        _flush()
        os.dup2(stdout, 1)
        os.close(stdout)


@contextmanager
def output_kept_back() -> Iterator[None]:
    """Keep what anybody prints meanwhile; where the body fails its end is shown, on stderr."""
    with tempfile.TemporaryFile() as kept:
        _flush()
        before = [os.dup(descriptor) for descriptor in (1, 2)]
        for descriptor in (1, 2):
            os.dup2(kept.fileno(), descriptor)
        try:
            yield
        except Exception:
            _put_back(before)
            kept.seek(max(0, kept.tell() - _SHOWN_BYTES))
            sys.stderr.write(printable(kept.read().decode("utf-8", "replace")))
            raise
        finally:
            _put_back(before)


def _put_back(before: list[int]) -> None:
    """Give stdout and stderr back what they were, once."""
    _flush()
    for descriptor, kept in zip((1, 2), before, strict=False):
        os.dup2(kept, descriptor)
        os.close(kept)
    before.clear()


def _flush() -> None:
    sys.stdout.flush()
    # What compiled code has not written yet.
    ctypes.CDLL(None).fflush(None)


def print_json(answer: object, spell: Callable[[object], str] | None = None) -> None:
    """Print one JSON object; `spell` writes what JSON has no word for, where that may be there."""
    sys.stdout.write(json.dumps(answer, indent=2, default=spell) + "\n")
