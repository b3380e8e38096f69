"""Environment variables that a user may set. No other module reads them."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

_SOCKET_BYTES = 107
"""Maximum length of the path of a Unix socket."""
_SESSION_BYTES = len("/12345678/session_2026-12-31_23-59-59_999999_1234567/sockets/plasma_store")
"""Length of a run's folder in the folder of sessions, with the longest path that Ray creates."""


def ray_address() -> str | None:
    """Return the address of a running Ray cluster to join, if the user set one."""
    return os.environ.get("RAY_ADDRESS") or None


def variable_named(name: str) -> str | None:
    """Return the value of a variable named in a configuration; None if unset or empty."""
    return os.environ.get(name) or None


def cache_folder() -> Path:
    """Return the user's cache folder of mindrl."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mindrl"


def ray_session_folder() -> Path:
    """Return the folder of Ray's sockets and logs: in the user's cache folder of mindrl."""
    return cache_folder() / "ray"


def has_room_for_sockets(folder: Path) -> bool:
    """Return whether the paths of Ray's sockets in the folder are short enough."""
    return len(os.fsencode(folder)) + _SESSION_BYTES <= _SOCKET_BYTES


def prepare_driver() -> None:
    """Set variables that Ray and Hydra read at import; call it before importing them.

    A Ray cluster that this process starts is protected by a random token that only its own
    processes have. A cluster that it joins has the user's token. Hydra raises its errors.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if ray_address() is None:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def take_on(variables: Mapping[str, str]) -> None:
    """Set variables for later imports in this process and for its children."""
    os.environ.update(variables)


def with_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process with `variables` added, for a child process."""
    return {**os.environ, **variables}


def replace_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment of this process."""
    os.environ.clear()
    os.environ.update(variables)


@contextmanager
def in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes started in the body, then restore them."""
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
    """Replace this process by another program, with `variables` added to its environment."""
    os.execvpe(command[0], [*command], with_variables(variables))  # noqa: S606
