"""A configuration as a YAML file with comments, by dotted keys."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from mindrl.config.load import field_names
from mindrl.errors import ConfigError, OutputError

_PLAIN = re.compile(r"[A-Za-z./][\w./-]*")
_NO_TEXT = frozenset(
    {"true", "false", "null", "yes", "no", "on", "off", "y", "n", ".", ".inf", ".nan"}
)
WIDTH = 98
"""Columns of a comment."""


def config_text(
    values: Mapping[str, Any],
    *,
    header: Iterable[str],
    comments: Mapping[str, str],
    has_critic: bool,
) -> str:
    """Write a file.

    Args:
        values: By dotted keys.
        header: Comments at the beginning.
        comments: By the key that each stands over.
        has_critic: Whether the critic's keys can be overridden.
    """
    lines = [line for text in header for line in _comment(text, "")]
    critic = ["mindrl_critic_defaults"] if has_critic else []
    lines += ["defaults:"]
    lines += [f"  - {name}" for name in ("mindrl_defaults", *critic, "program", "_self_")]
    for section in field_names([]):
        if keys := [key for key in values if key.startswith(f"{section}.")]:
            lines += ["", f"{section}:", *_section(section, keys, values, comments)]
    return "\n".join(lines) + "\n"


def write_new(path: str, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        OutputError: It is there, or cannot be written.
    """
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OutputError(f"-o {path}: there is a file already") from error
    except OSError as error:
        raise OutputError(f"-o {path}: {error.strerror or error}") from error


def needs_yaml_suffix(path: str) -> None:
    """Refuse a name that no program would find as a configuration.

    Raises:
        ConfigError: It does not end in .yaml.
    """
    if Path(path).suffix != ".yaml":
        raise ConfigError(f"-o {path}: needs the suffix .yaml")


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into sections."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *path, name = key.split(".")
        section = whole
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return whole


def _section(
    section: str, keys: Sequence[str], values: Mapping[str, Any], comments: Mapping[str, str]
) -> Iterator[str]:
    """Write a section, its keys in the order of the reference."""
    open_path: list[str] = [section]
    for key in sorted(keys, key=_rank):
        path = key.split(".")[:-1]
        if path != open_path and len(path) > 1:
            yield f"{'  ' * (len(path) - 1)}{path[-1]}:"
        open_path = path
        indent = "  " * len(path)
        if key in comments:
            yield from _comment(comments[key], indent)
        yield f"{indent}{key.rpartition('.')[2]}: {spelled_value(values[key])}"


def _rank(key: str) -> tuple[int, ...]:
    """Return the place of a key in the reference."""
    path = key.split(".")
    return tuple(field_names(path[:depth]).index(part) for depth, part in enumerate(path))


def _comment(text: str, indent: str) -> list[str]:
    """Write a comment; whatever the text holds, it stays one."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    begin = f"{indent}# "
    return wrap(
        shown,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=begin,
        break_on_hyphens=False,
        break_long_words=False,
    )


def spelled_value(value: Any) -> str:
    """Write a value so that YAML reads the same."""
    if isinstance(value, list):
        return f"[{', '.join(spelled_value(each) for each in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    # What looks like an interpolation is text here: those of their file are resolved.
    return json.dumps(value.replace("${", r"\${"), ensure_ascii=False)
