"""The versions that `--version` prints: those that a report of a bug needs."""

import platform
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ALWAYS = ("ray", "transformers")


def version_line() -> str:
    """Return mindrl's version, followed by those of Python and of the installed engines."""
    try:
        own = version("mindrl")
    except PackageNotFoundError:
        project = Path(__file__).parents[2] / "pyproject.toml"
        own = tomllib.loads(project.read_text("utf-8"))["project"]["version"]
    return f"mindrl {own} ({', '.join(_others())})"


def _others() -> Iterator[str]:
    # Imported late: every start of the command imports this module.
    from mindrl.doctor.declared import declared, installed_version  # noqa: PLC0415

    yield f"Python {platform.python_version()}"
    names = [[each.name for each in extra] for extra in declared().extras.values()]
    # An extra that installs torch is one of a device.
    engines = {name for extra in names if "torch" in extra for name in extra}
    for name in (*sorted(engines), *_ALWAYS):
        if (found := installed_version(name)) is not None:
            yield f"{name} {found}"
