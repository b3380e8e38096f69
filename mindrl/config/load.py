"""Load frozen dataclasses from a plain mapping, as composed by Hydra."""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from mindrl.config.run import RunConfig
from mindrl.config.section import documented_fields
from mindrl.config.supervision import supervised
from mindrl.errors import ConfigError

_LIKE_ENOUGH = 0.6
_SURROGATE = re.compile("[\ud800-\udfff]")
_A_SECTION = "must be a section with keys"
_NEEDS = {"dataclass_type": _A_SECTION, "tuple_type": "must be a list"}
"""Replacements of pydantic's messages."""


Hint = Callable[[str, object], object | None]
"""Returns a replacement for an unknown key and its value, or None."""


def no_hint(key: str, value: object) -> None:
    """Return None: no other names are known."""


def load_run_config(values: Mapping[str, Any], hint: Hint = no_hint) -> RunConfig:
    """Build a run's configuration from its sections, with the values that its kind implies.

    Args:
        values: Sections with their keys.
        hint: Returns a replacement for an unknown key; if it returns None, the nearest key is
            suggested.

    Raises:
        ConfigError: Unknown keys, missing keys, wrong types and values out of range, all at once.
    """
    if unreadable := [*_unreadable(values)]:
        raise ConfigError("\n".join(unreadable))
    try:
        # JSON allows a list for a tuple while every other type stays strict.
        return supervised(TypeAdapter(RunConfig).validate_json(json.dumps(values)))
    except ValidationError as error:
        findings = [_describe(finding, hint) for finding in error.errors(include_url=False)]
    raise ConfigError("\n".join(findings))


def wrong_sections(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an error for each value in place of a section; null leaves a section out."""
    for key, value in values.items():
        place = (*path, str(key))
        if isinstance(value, Mapping):
            yield from wrong_sections(value, place)
        elif place in _LISTS and isinstance(value, list):
            for at, each in enumerate(value):
                yield from wrong_sections({str(at): each}, place)
        elif place in _LISTS:
            yield f"{'.'.join(place)}={value} must be a list of sections"
        elif value is not None and field_names(place):
            yield f"{'.'.join(place)}={value} {_A_SECTION}"


def sections(section: type, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], type]:
    """Return a section and its nested sections by path; outer ones come first."""
    found = {path: section}
    for name, hint in get_type_hints(section).items():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and is_dataclass(kind):
                found |= sections(kind, (*path, name))
    return found


_SECTIONS = sections(RunConfig)
_LISTS = frozenset(
    path
    for path in _SECTIONS
    if path and get_origin(get_type_hints(_SECTIONS[path[:-1]])[path[-1]]) is tuple
)
"""Paths of lists of sections."""


def field_names(path: Sequence[str]) -> list[str]:
    """Return the keys of the section at `path`; empty if there is none."""
    section = _SECTIONS.get(tuple(part for part in path if not part.isdigit()))
    return list(documented_fields(section)) if section else []


def same_name(key: str) -> str | None:
    """Return the first key of any section with this name, with or without the section's prefix."""
    for place in filter(None, _SECTIONS):
        for name in (key, key.removeprefix(f"{place[-1]}_")):
            if name in field_names(place):
                return ".".join([*place, name])
    return None


def suggest(path: Sequence[str], key: str) -> str:
    """Return a suggestion for an unknown key: the probable one, or the three nearest."""
    known = field_names(path)
    if not known:
        return f"{'.'.join(path)} has no keys below it"
    if (there := same_name(key)) is not None:
        return f"did you mean {there}?"
    near = sorted(known, key=lambda name: _likeness(key, name), reverse=True)
    if _likeness(key, near[0]) > _LIKE_ENOUGH:
        return f"did you mean {'.'.join([*path, near[0]])}?"
    if not path:
        return f"write the section first, as in rl_config.device; sections: {', '.join(known)}"
    nearest = ", ".join(".".join([*path, name]) for name in near[:3])
    return f"nearest: {nearest}; `mindrl train-grpo --cfg job` prints all keys"


def _unreadable(value: Any, path: str = "") -> Iterator[str]:
    """Yield values that no key accepts: bytes, and text with lone surrogates."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _unreadable(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _unreadable(each, path)
    elif isinstance(value, bytes) or (isinstance(value, str) and _SURROGATE.search(value)):
        yield f"{path}={value!r} must be UTF-8 text, a number, true, false or null"


def _likeness(typed: str, name: str) -> float:
    """Return the similarity to the whole name or its beginning: long names are abbreviated."""
    return max(
        difflib.SequenceMatcher(None, typed, candidate).ratio()
        for candidate in (name, name[: len(typed)])
    )


def _describe(finding: Any, hint: Hint) -> str:
    path = [str(part) for part in finding["loc"]]
    name = ".".join(path)
    match finding["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            other = hint(name, finding["input"]) or suggest(path[:-1], path[-1])
            return f"{name} is not a configuration key; {other}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"{name} is missing and has no default"
    return wrong_value(name, finding)


def wrong_value(key: str, finding: Any) -> str:
    """Return the error for the value of a key that pydantic refused: key, value and need."""
    need = _NEEDS.get(finding["type"], finding["msg"].replace("Input should be", "must be"))
    return f"{key}={json.dumps(finding['input'])} {need[0].lower()}{need[1:]}"
