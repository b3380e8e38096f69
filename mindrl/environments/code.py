"""Code that a policy wrote: run in a sandbox, as a tool or by the user's tools.

A run whose own functions import this module is refused at its start if no sandbox works.
"""

import time
from dataclasses import dataclass, replace

from mindrl.environments.turn import current_turn, sandbox_of
from mindrl.errors import EnvironmentFailedError
from mindrl.platform.sandbox import SandboxError, SandboxLimits

_RESULT_LETTERS = 2000
_ERROR_LINES = 5
_ERROR_LETTERS = 500


@dataclass(frozen=True, kw_only=True)
class CodeResult:
    """A program's output, and how it ended."""

    output: str
    """Empty if a time limit ended the program: its progress is chance."""
    error: str
    """Last lines of its errors, or the limit that ended it; empty if it succeeded."""


def run_python(code: str, limits: SandboxLimits | None = None) -> CodeResult:
    """Run a Python program in a new sandbox.

    All programs of a turn have at most 0.8 times `environment_config.call_timeout_seconds`.

    Args:
        code: The program.
        limits: Its limits; None for 10 seconds and 256 MiB.

    Raises:
        ConfigError: No sandbox works on this machine.
        EnvironmentFailedError: The sandbox did not start.
    """
    turn, limits = current_turn(), limits or SandboxLimits()
    sandbox = sandbox_of(turn.sandbox)
    seconds = min(limits.seconds, turn.ends - time.monotonic())
    if seconds <= 0:
        return CodeResult(output="", error="error: no time is left in this turn")
    try:
        end = sandbox.run(code, replace(limits, seconds=seconds))
    except (SandboxError, OSError) as error:
        raise EnvironmentFailedError(f"the sandbox did not start: {error}") from error
    if end.limit == "time":
        return CodeResult(output="", error="error: killed at the time limit")
    output = end.output.decode(errors="replace")
    if end.limit == "output":
        return CodeResult(output=output, error="error: killed, because it printed too much")
    if end.code == 0:
        return CodeResult(output=output, error="")
    lines = end.errors.decode(errors="replace").strip().split("\n")[-_ERROR_LINES:]
    error_text = "\n".join(lines)[-_ERROR_LETTERS:]
    return CodeResult(output=output, error=error_text or f"error: exit code {end.code}")


def python(code: str) -> str:
    """Run a Python program and return what it prints, with the last lines of an error.

    It has the standard library, 10 seconds, 256 MiB and an empty folder, and no network. The next
    program starts anew.

    Args:
        code: The program, which has to print its result.
    """
    result = run_python(code)
    output = result.output
    if len(output) > _RESULT_LETTERS:
        output = f"{output[:_RESULT_LETTERS]}\n[cut]"
    parts = [each for each in (output.rstrip("\n"), result.error) if each]
    return "\n".join(parts) or "(no output)"
