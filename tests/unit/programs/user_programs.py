"""Run programs as a user does: each in a separate process, to its end."""

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from forked_workers import ForkedWorkers

ROOT = Path(__file__).parents[3]
PREPARED = Path(__file__).with_name("prepared.py")
HEAVY = ("torch", "megatron", "vllm", "ray", "transformers")


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


def without_torch(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, on a machine without torch and engines."""
    return _run(_machine(*HEAVY), arguments, folder, environment)


def with_torch(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, in a process that has imported torch already."""
    return _run(_machine(), arguments, folder, environment)


def _run(
    machine: ForkedWorkers,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None,
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [Path(scratch, name) for name in ("stdout", "stderr")]
        order = arguments, str(folder), {**os.environ, **(environment or {})}, outputs
        (code,) = machine.run("prepared:run", *order)
        said = (path.read_text("utf-8") for path in outputs)
        return subprocess.CompletedProcess(arguments, code, *said)


@cache
def _machine(*absent: str) -> ForkedWorkers:
    folder = tempfile.TemporaryDirectory()
    # The checkout of this file, which need not be the one that is installed.
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests/distributed")))
    environment = {"PYTHONPATH": path, "ABSENT": " ".join(absent)}
    machine = ForkedWorkers(Path(folder.name, "log.txt"), PREPARED, environment)
    atexit.register(folder.cleanup)
    atexit.register(machine.stop)
    return machine
