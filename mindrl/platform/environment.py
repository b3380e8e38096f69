"""Environment variables that a user may set. Read here and nowhere else."""

import os
from pathlib import Path


def ray_address() -> str | None:
    """Return the address of a running Ray cluster to join, if the user names one."""
    return os.environ.get("RAY_ADDRESS") or None


def cache_folder() -> Path:
    """Return the user's cache folder of mindrl."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "mindrl"


def require_ray_tokens() -> None:
    """Make Ray ask for a token, unless the user has chosen otherwise."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")


def let_hydra_raise() -> None:
    """Make Hydra pass its errors on instead of printing and exiting by itself."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
