"""Build the wheel of this checkout without network, and install it where the checkout is not."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[3]
_NEEDS = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def copied_sources(folder: Path) -> Path:
    """Copy what a build needs, because a build leaves files next to it; returns the copy."""
    for name in ("mindrl", "configs", "requirements"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    for name in _NEEDS:
        shutil.copy(ROOT / name, folder)
    return folder


def built_wheel(sources: Path, folder: Path) -> Path:
    """Build the wheel of a copy with the installed build tools; returns its path."""
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir")
    subprocess.run([*_PIP, "wheel", *options, folder, sources], check=True)
    (wheel,) = folder.glob("mindrl-*.whl")
    return wheel


def installed(wheel: Path, folder: Path) -> Path:
    """Install a wheel in a new environment, which has all other packages of this one.

    Returns the folder of its programs.
    """
    venv.create(folder)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python*/site-packages")
    # The packages of this environment, but not its .pth files: one of them names the checkout.
    others = [path for path in sys.path if path.endswith("/site-packages")]
    (site / "others.pth").write_text("\n".join([*others, ""]))
    options = ("--no-deps", "--no-index", "--no-warn-script-location")
    subprocess.run([*_PIP, "--python", python, "install", *options, wheel], check=True)
    return python.parent


def outside(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without a PYTHONPATH that names the checkout."""
    return subprocess.run(
        command,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
