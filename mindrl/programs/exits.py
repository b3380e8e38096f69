"""Shared output and exit codes of all programs: text or JSON on stdout, errors on stderr."""

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

from mindrl.errors import ClusterError, ConfigError, InterruptedRunError, MindrlError
from mindrl.observability.terminal import printable

FAILED = 1
BAD_CONFIG = 2
INTERRUPTED = 130
MOST_SHOWN = 10
"""Number of findings that are printed by default."""
_SHOWN_BYTES = 4000
"""Bytes of suppressed output that are printed after a failure."""


def exit_code(
    action: Callable[[], int], *bad_input: type[Exception], shows_all: bool = False
) -> int:
    """Run `action`; an expected error or Ctrl-C is printed and becomes an exit code.

    `bad_input` are further errors about the program's input, besides `ConfigError`. Of these the
    first ten reasons are printed, or all with `shows_all`. An error of the cluster is one reason,
    which may end with the last lines of a log.
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
        if isinstance(error, ClusterError):
            reasons = [*reasons[:1], *(f" {line}" for line in reasons[1:])]
        elif code == BAD_CONFIG and not shows_all:
            reasons = first_reasons(reasons)
        return report(reasons, code)
    except KeyboardInterrupt:
        # Programs that have nothing to end in order keep Python's handler of Ctrl-C.
        return report(["stopped by SIGINT"], INTERRUPTED)


def first_reasons(reasons: Sequence[str]) -> list[str]:
    """Return the first ten reasons and a line with the number of the others.

    A line that starts with a blank continues the reason above it.
    """
    begins = [at for at, reason in enumerate(reasons) if not reason.startswith(" ")]
    if len(begins) <= MOST_SHOWN:
        return [*reasons]
    return [*reasons[: begins[MOST_SHOWN]], f" {rest_of(len(begins))}"]


def rest_of(number: int) -> str:
    """Return the text for the findings that are not shown, and how to see them."""
    return f"and {number - MOST_SHOWN} more; show them with mindrl check --all"


def report(reasons: Iterable[str], code: int) -> int:
    """Print reasons, one per line, and return the code; a leading blank continues a reason."""
    console = Console(stderr=True)
    for reason in reasons:
        mark = "       " if reason.startswith(" ") else "[bold red]error:[/] "
        console.print(f"{mark}{escape(reason)}", soft_wrap=True, highlight=False)
    return code


def counted(number: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def written(path: str, *, names_folder: bool = True) -> str:
    """Return the text that names the written configuration and the command that checks it."""
    file = Path(path)
    folder = f"--config-dir {file.parent} " if names_folder else ""
    return f"written: {path}; next: mindrl check {folder}--config-name {file.stem} --elsewhere"


@contextmanager
def stdout_unspoilt() -> Iterator[None]:
    """Redirect stdout to stderr in the body, including output of compiled code."""
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
    """Suppress all output of the body; if it fails, print the end of the output to stderr."""
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
    """Restore stdout and stderr; further calls have no effect."""
    _flush()
    for descriptor, kept in zip((1, 2), before, strict=False):
        os.dup2(kept, descriptor)
        os.close(kept)
    before.clear()


def _flush() -> None:
    sys.stdout.flush()
    # Flush the buffers of compiled code too.
    ctypes.CDLL(None).fflush(None)


def print_json(answer: object, spell: Callable[[object], str] | None = None) -> None:
    """Print one JSON object; `spell` converts values that JSON cannot represent."""
    sys.stdout.write(json.dumps(answer, indent=2, default=spell) + "\n")
