"""Check out the code of any revision, and run it with the data and models of the quickstarts."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache/tiny"
MODELS = {"model": "qwen2", "moe_model": "qwen3_moe"}


@contextmanager
def checkout(revision: str | None, folder: Path) -> Iterator[Path]:
    """Check out a revision in a folder; None is the working tree."""
    if revision is None:
        yield ROOT
        return
    _git("worktree", "add", "--detach", "--quiet", str(folder), revision)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*command: str) -> None:
    subprocess.run(["git", *command], cwd=ROOT, check=True)


def make_tiny_models() -> None:
    """Create missing data and models of the quickstarts."""
    data = str(CACHE / "data")
    _python("scripts/make_tiny_data.py", "--output", data, "--seed", "1")
    for name, family in MODELS.items():
        script = ("scripts/make_tiny_model.py", "--output", str(CACHE / name), "--data", data)
        _python(*script, "--seed", "1", "--family", family)


def _python(*command: str) -> None:
    # The output of these scripts is their result, so that of other programs goes to stderr.
    subprocess.run([sys.executable, *command], cwd=ROOT, stdout=sys.stderr, check=True)


def tiny_paths(model: str = "model") -> tuple[str, ...]:
    """Return the overrides that name the data and a model of this checkout."""
    return (
        f"actor_config.load={CACHE / model}",
        f"megatron_training.data_path={CACHE / 'data/train.jsonl'}",
        f"megatron_training.test_data_path={CACHE / 'data/test.jsonl'}",
    )


def run_program(
    code: Path,
    command: Sequence[str],
    log: Path,
    *,
    first_paths: Sequence[Path] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a Python program with the code in a folder; return its exit code.

    Args:
        code: Folder of the revision.
        command: The program's path in that folder, then its arguments.
        log: File for its output.
        first_paths: Folders that Python searches before the code.
        environment: Additional environment variables.
    """
    # Before the installed project, also in the workers.
    paths = os.pathsep.join(str(path) for path in (*first_paths, code))
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=code,
            env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return done.returncode
