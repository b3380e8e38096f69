"""What adapters share: packages that may be missing, seeds of rows, and observations as text."""

import importlib
import random
from collections.abc import Mapping
from typing import Any


def library(module: str, package: str) -> Any:
    """Return a module of a package that mindrl does not require.

    Raises:
        ModuleNotFoundError: It, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed; run: pip install {package}"
        ) from error


def row_seed(row: Mapping[str, Any]) -> int:
    """Return the column `seed` of a row, so that all conversations of a prompt begin alike.

    Without that column, return a random number, which differs between conversations.
    """
    given = row.get("seed")
    return random.randrange(1 << 31) if given is None else int(given)


def as_text(value: object) -> str:
    """Return an observation as text: contents of messages, and a line for each key of a mapping."""
    if isinstance(value, Mapping):
        if {"role", "content"} <= set(value):
            return as_text(value["content"])
        return "\n".join(f"{key}: {as_text(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        is_messages = any(isinstance(each, Mapping) for each in value)
        return ("\n\n" if is_messages else ", ").join(map(as_text, value))
    return str(value)
