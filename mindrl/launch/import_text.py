"""A configuration as a YAML file with comments, and the report of an import."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, get_args

from mindrl.config.load import field_names
from mindrl.config.mindspeed_rl import Import
from mindrl.config.mindspeed_rl_mapped import Kind, Mapped
from mindrl.observability.printable import printable

_PLAIN = re.compile(r"[A-Za-z./][\w./-]*")
_NO_TEXT = frozenset(
    {"true", "false", "null", "yes", "no", "on", "off", "y", "n", ".", ".inf", ".nan"}
)
_TITLES: Mapping[Kind, str] = {
    "refused": "refused: parts of the run that are not there",
    "open": "open: yours to settle before the first run",
    "derived": "derived",
    "renamed": "renamed",
    "honoured": "honoured: same name, same meaning",
    "ignored": "ignored",
}
_COMMENTED = ("open", "derived", "renamed", "refused")
_WIDTH = 98


def yaml_text(imported: Import, source: str) -> str:
    """Write the file, with a comment over each key that is not simply taken over."""
    comments = {
        next(iter(each.sets)): f"{each.key}: {each.note}"
        for each in imported.mapped
        if each.kind in _COMMENTED and each.sets
    }
    lines = [*_comment(f"Imported from {source}, a file of MindSpeed-RL.", "")]
    for each in imported.refused:
        lines += _comment(f"Left out, {each.key}: {each.note}", "")
    critic = ["mindrl_critic_defaults"] if imported.has_critic else []
    lines += ["defaults:"]
    lines += [f"  - {name}" for name in ("mindrl_defaults", *critic, "program", "_self_")]
    for section in field_names([]):
        if keys := [key for key in imported.values if key.startswith(f"{section}.")]:
            lines += ["", f"{section}:", *_section(section, keys, imported.values, comments)]
    return "\n".join(lines) + "\n"


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


def report_lines(imported: Import) -> Iterator[str]:
    """Say what became of each key, by kind."""
    for kind, title in _TITLES.items():
        found = [each for each in imported.mapped if each.kind == kind]
        if found:
            yield f"{title} ({len(found)})"
            yield from map(printable, _of_kind(kind, found))
            yield ""


def as_json(imported: Import, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [
        {
            "key": each.key,
            "value": given.get(each.key),
            "kind": each.kind,
            "sets": dict(each.sets),
            "note": each.note,
        }
        for kind in get_args(Kind)
        for each in imported.mapped
        if each.kind == kind
    ]


def _of_kind(kind: Kind, found: Sequence[Mapped]) -> Iterator[str]:
    if kind == "ignored":
        reasons = dict.fromkeys(each.note for each in found)
        for reason in reasons:
            yield f"  {reason}:"
            yield from _listed(each.key for each in found if each.note == reason)
    elif kind == "honoured":
        yield from _listed(each.key for each in found)
    else:
        for each in found:
            sets = ", ".join(f"{ours}={_value(value)}" for ours, value in each.sets.items())
            yield f"  {each.key}{f' -> {sets}' if sets else ''}"
            yield f"      {each.note}"


def _listed(keys: Iterable[str]) -> Iterator[str]:
    text = ", ".join(dict.fromkeys(keys))
    indent = " " * 6
    yield from wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )


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
        yield f"{indent}{key.rpartition('.')[2]}: {_value(values[key])}"


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
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=begin,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(each) for each in value)}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    # What looks like an interpolation is text here: those of their file are resolved.
    return json.dumps(value.replace("${", r"\${"), ensure_ascii=False)
