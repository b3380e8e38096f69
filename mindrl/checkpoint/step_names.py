"""Name files and folders by their step, such as `step-00000012`, and find them again."""

import re
from pathlib import Path

_STEP = re.compile(r"step-(\d{8})")


def step_of(folder: Path) -> int | None:
    """Return the step in the name of a checkpoint folder; None for other names."""
    name = _STEP.fullmatch(folder.name)
    return None if name is None else int(name[1])


def steps_in(folder: Path, suffix: str = "") -> list[int]:
    """Return the steps in the names of a folder's entries, ascending; none without the folder.

    Raises:
        OSError: The folder cannot be listed, or a link leads nowhere.
    """
    if not folder.exists() and not folder.is_symlink():
        return []
    entries = (path.name for path in folder.iterdir() if path.name.endswith(suffix))
    names = (name.removesuffix(suffix) for name in entries)
    return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)


def step_name(step: int) -> str:
    """Return the name, without a suffix, of a step's file or folder."""
    return f"step-{step:08}"
