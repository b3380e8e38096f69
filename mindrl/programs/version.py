"""The version of mindrl, as `--version` prints it."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def version_line() -> str:
    """Return `mindrl` with the version of the installed package, or of this checkout."""
    try:
        return f"mindrl {version('mindrl')}"
    except PackageNotFoundError:
        project = Path(__file__).parents[2] / "pyproject.toml"
        return f"mindrl {tomllib.loads(project.read_text('utf-8'))['project']['version']}"
