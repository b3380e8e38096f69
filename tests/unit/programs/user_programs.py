"""Run programs as a user does: each in a separate process, to its end."""

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from forked_workers import ForkedWorkers

ROOT = Path(__file__).parents[3]
TORCHLESS = Path(__file__).with_name("torchless.py")


def python(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder; `environment` extends that of the tests."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def without_torch(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, on a machine without torch and engines."""
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [Path(scratch, name) for name in ("stdout", "stderr")]
        order = arguments, str(folder), dict(os.environ), outputs
        (code,) = _machine_without_torch().run("torchless:run", *order)
        said = (path.read_text("utf-8") for path in outputs)
        return subprocess.CompletedProcess(arguments, code, *said)


@cache
def _machine_without_torch() -> ForkedWorkers:
    folder = tempfile.TemporaryDirectory()
    path = {"PYTHONPATH": str(ROOT / "tests/distributed")}
    machine = ForkedWorkers(Path(folder.name, "log.txt"), TORCHLESS, path)
    atexit.register(folder.cleanup)
    atexit.register(machine.stop)
    return machine
