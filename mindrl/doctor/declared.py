"""What mindrl declares that it needs, read where it is declared: nothing is written twice."""

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
    """Python and packages."""

    python: SpecifierSet
    own: tuple[Requirement, ...]
    """Of mindrl itself, whatever the device."""
    extras: Mapping[str, tuple[Requirement, ...]]
    """Of each extra."""


def declared() -> Declared:
    """Read the checkout's pyproject.toml, else the metadata of the installed package."""
    if _CHECKOUT.is_file():
        project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8")).get("project", {})
        # Beside an installed package another one may have left its file.
        if project.get("name") == _NAME:
            return from_project(project)
    return from_metadata(_NAME)


def from_project(project: Mapping[str, Any]) -> Declared:
    """Read the table [project] of a pyproject.toml."""
    extras = project.get("optional-dependencies", {})
    return Declared(
        python=SpecifierSet(project["requires-python"]),
        own=tuple(map(Requirement, project["dependencies"])),
        extras={extra: tuple(map(Requirement, texts)) for extra, texts in extras.items()},
    )


def from_metadata(distribution: str) -> Declared:
    """Read what pip wrote down when it installed the package."""
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
    """Return the version of an installed package, which is not imported; None where it is not."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _belongs(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
