"""The report of an import, and the configuration that it writes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, get_args

from mindrl.config.text import WIDTH, config_text, spelled_value
from mindrl.migrate.mapped import Import, Kind, Mapped
from mindrl.observability.printable import printable

_TITLES: Mapping[Kind, str] = {
    "refused": "refused: parts of the run that are not there",
    "open": "open: yours to settle before the first run",
    "derived": "derived",
    "renamed": "renamed",
    "honoured": "honoured: same name, same meaning",
    "ignored": "ignored",
}
_COMMENTED = ("open", "derived", "renamed", "refused")


def yaml_text(imported: Import, source: str) -> str:
    """Write the file, with a comment over each key that is not simply taken over."""
    comments = {
        next(iter(each.sets)): f"{each.key}: {each.note}"
        for each in imported.mapped
        if each.kind in _COMMENTED and each.sets
    }
    header = [f"Imported from {source}."]
    header += [f"Left out, {each.key}: {each.note}" for each in imported.refused]
    values = imported.values
    has_critic = values.get("rl_config.adv_estimator") == "gae"
    return config_text(values, header=header, comments=comments, has_critic=has_critic)


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
            sets = ", ".join(f"{ours}={spelled_value(value)}" for ours, value in each.sets.items())
            yield f"  {each.key}{f' -> {sets}' if sets else ''}"
            yield f"      {each.note}"


def _listed(keys: Iterable[str]) -> Iterator[str]:
    text = ", ".join(dict.fromkeys(keys))
    indent = " " * 6
    yield from wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False
    )
