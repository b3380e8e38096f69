"""Starts a program again in the environment of this checkout, where Python was that of the machine.

Importing it is enough. It is read by any Python 3, and ends with words where there is nothing else.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_OWN = _ROOT / ".venv"


def _enter() -> None:
    if find_spec("mindrl") and find_spec("hydra"):
        return
    python = _OWN / "bin" / "python"
    if python.is_file() and Path(sys.prefix) != _OWN:
        os.execv(python, [str(python), *sys.argv])  # noqa: S606 - no shell, and our own path
    way = f"activate its environment: source {_ROOT}/.venv/bin/activate"
    if not python.is_file():
        way = f"make its environment: bash {_ROOT}/scripts/install.sh"
    sys.stderr.write(f"error: {sys.executable} has no mindrl; {way}\n")
    sys.exit(1)


_enter()
# Only now is it sure that there is a mindrl.
import_module("mindrl.programs.early_signals").end_at_sigterm()
