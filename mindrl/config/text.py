"""Write a configuration as a YAML file with comments, from dotted keys."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from mindrl.config.load import field_names
from mindrl.errors import ConfigError, OutputError

_PLAIN = re.compile(r"[A-Za-z./][\w./-]*")
_NO_TEXT = frozenset(
    {"true", "false", "null", "yes", "no", "on", "off", "y", "n", ".", ".inf", ".nan"}
)
_OPTIONAL = ("preference", "sft", "teacher")
"""Sections that a run has only if its file names them."""
WIDTH = 98
"""Width of a comment."""


def config_text(
    values: Mapping[str, Any],
    *,
    header: Iterable[str],
    comments: Mapping[str, str],
    has_critic: bool,
) -> str:
    """Return a YAML file with the values of dotted keys, in the order of the reference.

    The header comes first, each comment above its key. With a critic all of the critic's keys can
    be overridden, and of each optional section that is there all of its keys.
    """
    sections, named = nested(values), ["mindrl_critic_defaults"] if has_critic else []
    named += [f"mindrl_{name}_defaults" for name in _OPTIONAL if f"{name}_config" in sections]
    defaults = [f"  - {name}" for name in ("mindrl_defaults", *named, "program", "_self_")]
    lines = [*(line for text in header for line in _comment(text, "")), "defaults:", *defaults]
    return "\n".join([*lines, *_section(sections, (), comments), ""])


def write_new(path: str, text: str) -> None:
    """Write a new file.

    Raises:
        OutputError: It exists, or cannot be written.
    """
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OutputError(f"-o {path}: file exists already") from error
    except OSError as error:
        raise OutputError(f"-o {path}: {error.strerror or error}") from error


def needs_yaml_suffix(path: str) -> None:
    """Refuse a file name that is not a configuration's.

    Raises:
        ConfigError: It does not end in .yaml.
    """
    if Path(path).suffix != ".yaml":
        raise ConfigError(f"-o {path}: must end in .yaml")


def dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested sections with its dotted key; an empty section yields none."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested sections."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *path, name = key.split(".")
        section = whole
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return whole


def _section(
    values: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a section in the order of the reference."""
    indent = "  " * len(path)
    known = field_names(path)
    for name, value in sorted(values.items(), key=lambda item: known.index(item[0])):
        if isinstance(value, dict):
            if not path:
                yield ""
            yield f"{indent}{name}:{'' if value else ' {}'}"
            yield from _section(value, (*path, name), comments)
        else:
            yield from _comment(comments.get(".".join((*path, name)), ""), indent)
            yield f"{indent}{name}: {spelled_value(value)}"


def _comment(text: str, indent: str) -> list[str]:
    """Return the lines of a comment; unprintable characters become spaces."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    begin = f"{indent}# "
    lines = wrap(shown, WIDTH - len(begin), break_on_hyphens=False, break_long_words=False)
    return [f"{begin}{line}" for line in lines]


def spelled_value(value: Any) -> str:
    """Format a value so that YAML reads the same value."""
    if isinstance(value, list):
        return f"[{', '.join(spelled_value(each) for each in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    # Escape interpolations: the values are already resolved.
    return json.dumps(value.replace("${", r"\${"), ensure_ascii=False)
