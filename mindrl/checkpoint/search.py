"""Find the checkpoints at a path, or suggest the run that was probably meant."""

import difflib
from contextlib import suppress
from pathlib import Path

from mindrl.checkpoint.commits import CHECKPOINTS, Commits
from mindrl.checkpoint.step_names import step_of
from mindrl.errors import CheckpointError


def find_checkpoints(path: Path) -> tuple[Commits, list[int]]:
    """Return a run's checkpoint folder, and its steps, the newest first.

    The path is a run folder, its folder of checkpoints, or one checkpoint.

    Raises:
        CheckpointError: There is none; the error names the nearest one.
    """
    folder = path.resolve()
    for commits in (Commits(folder / CHECKPOINTS), Commits(folder)):
        if steps := commits.steps():
            return commits, steps
    commits, step = Commits(folder.parent), step_of(folder)
    steps = commits.steps()
    if step in steps:
        return commits, [step]
    if step is not None and steps:
        near = min(steps, key=lambda each: (abs(each - step), -each))
        raise CheckpointError(f"no checkpoint of step {step}; the nearest is of step {near}")
    what = "it holds none" if folder.is_dir() else "no such folder"
    near_run = _nearest_run(folder)
    raise CheckpointError(f"{what}; did you mean {near_run}?" if near_run else what)


def _has_checkpoints(folder: Path) -> bool:
    with suppress(CheckpointError):
        return bool(Commits(folder).steps())
    return False


def _nearest_run(folder: Path) -> Path | None:
    """Return the run folder with checkpoints, near this one, with the most similar path."""
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    runs = {
        found.parent
        for place in (there, there.parent)
        for depth in ("", "*/", "*/*/")
        for found in place.glob(f"{depth}{CHECKPOINTS}")
        if _has_checkpoints(found)
    }

    def likeness(run: Path) -> tuple[float, str]:
        # Ties go to the last by name: folders are named by their time.
        return difflib.SequenceMatcher(None, str(folder), str(run)).ratio(), str(run)

    return max(runs, key=likeness, default=None)
