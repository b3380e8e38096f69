"""Compare the NPU contract with published sources: rows, findings, and the rows as tables."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from npu_contract.entry import Entry
from npu_contract.evidence import Evidence, MissingError
from npu_contract.published_python import PublishedPython
from npu_contract.sources import Sources


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was found of one entry."""

    package: str
    """Name and version."""
    kind: str
    name: str
    """With its arguments or values."""
    evidence: str
    """What was found and where; empty where something is missing."""
    finding: str
    """What is missing; empty where nothing is."""
    needed_by: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check."""

    rows: tuple[Row, ...]
    not_checked: Mapping[str, str]
    """Reasons, by package."""

    def findings(self) -> list[str]:
        """Return what is missing, each with the file of mindrl that needs it."""
        return [
            f"{row.package}: {row.finding}; {row.needed_by} needs it"
            for row in self.rows
            if row.finding
        ]

    def notes(self) -> list[str]:
        """Return what was not checked, and why."""
        return [
            f"NPU contract not checked: {package}: {reason}"
            for package, reason in self.not_checked.items()
        ]


def check_contract(entries: Iterable[Entry], sources: Sources) -> Checked:
    """Look for every entry whose package can be read."""
    evidence = Evidence(PublishedPython(sources.packages))
    rows = [
        _row(entry, evidence)
        for entry in entries
        if entry.pin.distribution not in sources.unavailable
    ]
    return Checked(rows=tuple(rows), not_checked=sources.unavailable)


def _row(entry: Entry, evidence: Evidence) -> Row:
    found = finding = ""
    try:
        found = evidence.of(entry)
    except MissingError as error:
        finding = str(error)
    return Row(
        package=entry.pin.requirement,
        kind=entry.kind,
        name=described(entry),
        evidence=found,
        finding=finding,
        needed_by=entry.used_by,
    )


def described(entry: Entry) -> str:
    """Return an entry's name with what else is looked for."""
    arguments = f"({', '.join(entry.arguments)})" if entry.arguments else ""
    values = f": {', '.join(entry.values)}" if entry.values else ""
    return f"{entry.name}{arguments}{values}"


def matrix(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown: one table for each package."""
    packages = list(dict.fromkeys(row.package for row in rows))
    return "\n\n".join("\n".join(_table(package, rows)) for package in packages)


def _table(package: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"### {package}\n"
    yield "| Name | Kind | Evidence | Needed by |"
    yield "| --- | --- | --- | --- |"
    for row in rows:
        if row.package == package:
            said = row.evidence or f"**MISSING**: {row.finding}"
            yield f"| `{row.name}` | {row.kind} | {said} | `{row.needed_by}` |"


def as_values(rows: Iterable[Row]) -> list[dict[str, str]]:
    """Return rows as JSON has them."""
    return [dataclasses.asdict(row) for row in rows]
