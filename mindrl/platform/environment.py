"""Environment variables that a user may set. Read here and nowhere else."""

import os
import secrets
from pathlib import Path


def ray_address() -> str | None:
    """Return the address of a running Ray cluster to join, if the user names one."""
    return os.environ.get("RAY_ADDRESS") or None


def cache_folder() -> Path:
    """Return the user's cache folder of mindrl."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mindrl"


def prepare_driver() -> None:
    """Set what Ray and Hydra read once, when they are imported; call it before that.

    A Ray cluster that this process starts is protected by a token that only its own processes
    know. A cluster that it joins has the user's token. Hydra raises its errors.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if ray_address() is None:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
