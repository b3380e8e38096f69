"""Environment variables that a user may set. Read here and nowhere else."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_LONGEST_SESSION_PATH = 70
"""Ray puts sockets below its folder, and a socket's path may have 107 bytes."""


def ray_address() -> str | None:
    """Return the address of a running Ray cluster to join, if the user names one."""
    return os.environ.get("RAY_ADDRESS") or None


def variable_named(name: str) -> str | None:
    """Return the value of a variable that a configuration names; None where there is none."""
    return os.environ.get(name) or None


def cache_folder() -> Path:
    """Return the user's cache folder of mindrl."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mindrl"


def ray_session_folder() -> Path:
    """Return where Ray is to keep its sockets and logs: in the user's cache folder of mindrl."""
    return cache_folder() / "ray"


def has_room_for_sockets(folder: Path) -> bool:
    """Say whether the paths of Ray's sockets below the folder are short enough."""
    return len(str(folder)) <= _LONGEST_SESSION_PATH - len("ray")


def prepare_driver() -> None:
    """Set what Ray and Hydra read once, when they are imported; call it before that.

    A Ray cluster that this process starts is protected by a token that only its own processes
    know. A cluster that it joins has the user's token. Hydra raises its errors.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if ray_address() is None:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def take_on(variables: Mapping[str, str]) -> None:
    """Set variables for what this process imports from now on, and for its children."""
    os.environ.update(variables)


def with_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with more variables, for a child of it."""
    return {**os.environ, **variables}


def replace_environment(variables: Mapping[str, str]) -> None:
    """Have this environment, and no other, in this process from now on."""
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables for a while, for what is started meanwhile."""
    before = {**os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def become(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Become another program, with more variables than this one has."""
    os.execvpe(command[0], [*command], with_variables(variables))  # noqa: S606
