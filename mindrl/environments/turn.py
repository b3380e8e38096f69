"""What code and tools know about the turn that they answer, and the sandbox of the run.

`mindrl.environments.code` is another module: importing it marks a run that executes code.
"""

import math
from contextvars import ContextVar
from dataclasses import dataclass

from mindrl.errors import ConfigError
from mindrl.platform.sandbox import HOW_TO_ALLOW, Sandbox, find_sandbox


@dataclass(frozen=True, kw_only=True)
class CodeTurn:
    """The turn that this process answers, or the time in which a class states its tools."""

    sandbox: str = "auto"
    """Value of `environment_config.sandbox`."""
    ends: float = math.inf
    """Monotonic time by which it must have ended."""


_TURN = ContextVar("turn", default=CodeTurn())  # noqa: B039 - it is frozen


def current_turn() -> CodeTurn:
    """Return the turn that this process answers."""
    return _TURN.get()


def begin_turn(turn: CodeTurn) -> None:
    """Set the turn that this process answers."""
    _TURN.set(turn)


def sandbox_of(choice: str) -> Sandbox:
    """Return the sandbox that works on this machine.

    Raises:
        ConfigError: No sandbox of this choice works.
    """
    search = find_sandbox(choice)
    if search.sandbox is None:
        tried = "; ".join(search.failures)
        raise ConfigError(
            f"environment_config.sandbox={choice}: tools that run code need a sandbox, and none "
            f"works on this machine ({tried}). To allow one: {HOW_TO_ALLOW}"
        )
    return search.sandbox
