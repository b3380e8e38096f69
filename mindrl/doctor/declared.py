"""Read mindrl's declared requirements from their only source."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

_NAME = "mindrl"
_CHECKOUT = Path(__file__).resolve().parents[2] / "pyproject.toml"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Required Python version and packages."""

    python: SpecifierSet
    own: tuple[Requirement, ...]
    """Requirements of mindrl itself, on every device."""
    extras: Mapping[str, tuple[Requirement, ...]]
    """Requirements of each extra."""


def declared() -> Declared:
    """Read the checkout's pyproject.toml, else the metadata of the installed package."""
    if _CHECKOUT.is_file():
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8")).get("project", {})
        # Next to an installed package there may be another project's file.
        if project.get("name") == _NAME:
            return from_project(project)
    return from_metadata(_NAME)


def from_project(project: Mapping[str, Any]) -> Declared:
    """Parse the table [project] of a pyproject.toml."""
    extras = project.get("optional-dependencies", {})
    return Declared(
        python=SpecifierSet(project["requires-python"]),
        own=tuple(map(Requirement, project["dependencies"])),
        extras={extra: tuple(map(Requirement, texts)) for extra, texts in extras.items()},
    )


def from_metadata(distribution: str) -> Declared:
    """Parse the metadata of an installed package."""
    entries = metadata(distribution)
    requirements = [Requirement(text) for text in entries.get_all("Requires-Dist") or ()]
    extras = entries.get_all("Provides-Extra") or ()
    own = [each for each in requirements if _belongs(each, "")]
    others = [each for each in requirements if each not in own]
    return Declared(
        python=SpecifierSet(entries["Requires-Python"]),
        own=tuple(own),
        extras={name: tuple(each for each in others if _belongs(each, name)) for name in extras},
    )


def installed_version(distribution: str) -> str | None:
    """Return the version of a package without importing it; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _belongs(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
