"""How every program answers and ends: text or JSON, an exit code, on stderr the reasons."""

import json
import sys
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.markup import escape

from mindrl.errors import ConfigError, InterruptedRunError, MindrlError

FAILED = 1
BAD_CONFIG = 2
INTERRUPTED = 130


def exit_code(action: Callable[[], int], *bad_input: type[Exception]) -> int:
    """Run, and turn an error that was raised on purpose into words and an exit code.

    `bad_input` are errors that speak of what the program was given, besides `ConfigError`.
    """
    of_input: tuple[type[Exception], ...] = (ConfigError, *bad_input)
    try:
        return action()
    except InterruptedRunError as error:
        return report(str(error).splitlines(), INTERRUPTED)
    except of_input as error:
        return report(str(error).splitlines(), BAD_CONFIG)
    except MindrlError as error:
        return report(str(error).splitlines(), FAILED)


def report(reasons: Iterable[str], code: int) -> int:
    """Print reasons, one a line, and return the code; one with blanks before it goes on."""
    console = Console(stderr=True)
    for reason in reasons:
        mark = "       " if reason.startswith(" ") else "[bold red]error:[/] "
        console.print(f"{mark}{escape(reason)}", soft_wrap=True, highlight=False)
    return code


def say(*lines: str, to_stderr: bool = False) -> None:
    """Print lines as they are, however long."""
    console = Console(stderr=to_stderr)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def counted(number: int, what: str) -> str:
    """Spell how many there are of something."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def print_json(answer: object) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(answer, indent=2) + "\n")
