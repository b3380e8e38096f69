"""Starts a program in the environment of this checkout, also from the Python of the machine.

Any Python 3 can read this file; without an environment it prints how to make one.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_OWN = _ROOT / ".venv"


def start(name: str) -> None:
    """Run `mindrl NAME` with the arguments of this process, and exit."""
    if not (find_spec("mindrl") and find_spec("hydra")):
        _enter()
    import_module("mindrl.programs.early_signals").handle_early_signals()
    sys.exit(import_module("mindrl.programs.entry").start(name))


def _enter() -> None:
    """Replace this process by one of the environment, or exit with an error."""
    python = _OWN / "bin" / "python"
    if python.is_file() and Path(sys.prefix) != _OWN:
        os.execv(python, [str(python), *sys.argv])  # noqa: S606 - no shell, and our own path
    way = f"activate the environment: source {_ROOT}/.venv/bin/activate"
    if not python.is_file():
        way = f"create the environment: bash {_ROOT}/scripts/install.sh"
    sys.stderr.write(f"error: {sys.executable} has no mindrl; {way}\n")
    sys.exit(1)
