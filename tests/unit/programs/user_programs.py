"""Programs as a user starts them: each in a process of its own, to its end."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
_WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "megatron", "vllm", "ray", "transformers"):
    sys.modules[name] = None  # import then raises ImportError, as where it is not installed
sys.argv = sys.argv[1:]
sys.path.insert(0, "cli")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def python(
    *arguments: str, folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder; `environment` comes on top of that of the tests."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of cli/ on a machine that has no torch and no engines."""
    return python("-c", _WITHOUT_TORCH, *arguments)
