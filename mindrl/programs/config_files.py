"""What is wrong with the YAML files of a configuration, in words, once Hydra has refused them."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindrl.config.load import wrong_sections

_SUFFIX = ".yaml"
_NO_RUN = "program"
"""A file that has a `defaults` list and is no run by itself."""


def run_names(folder: Path) -> list[str]:
    """Return the names of the runs in a folder of configurations.

    What runs only name in their `defaults` has no such list itself.
    """
    files = (path for path in folder.glob(f"*{_SUFFIX}") if path.stem != _NO_RUN)
    return sorted(path.stem for path in files if b"\ndefaults:" in b"\n" + path.read_bytes())


def no_such_name(name: str, folders: Sequence[Path]) -> str:
    """Say which configurations there are instead of one, and which was probably meant.

    The first folder is the user's own.
    """
    path = Path(name).with_suffix(_SUFFIX)
    known = [each for folder in folders for each in run_names(folder)]
    hint = f"there are: {', '.join(run_names(folders[0]))}"
    if path.is_file() and path.parent.resolve() in folders:
        hint = f"did you mean --config-name {path.stem}?"
    elif path.is_file():
        hint = f"did you mean --config-dir {path.parent} --config-name {path.stem}?"
    elif near := difflib.get_close_matches(path.stem, known, n=1):
        hint = f"did you mean {near[0]}? {hint}"
    return f"{folders[0]} has no configuration {name}; {hint}"


def first_trouble(name: str, folders: Sequence[Path]) -> str | None:
    """Find a file that cannot be read, from the named one along the `defaults`; None: all can."""
    return next(_troubles(name.removesuffix(_SUFFIX), folders, ()), None)


def in_words(error: Exception) -> str:
    """Say in a line what Hydra or OmegaConf has raised."""
    # Behind the key OmegaConf says more, of classes.
    text = " ".join(str(error).partition("full_key:")[0].split()) or type(error).__name__
    key = getattr(error, "full_key", None)
    return f"{key}: {text}" if key else text


def _troubles(name: str, folders: Sequence[Path], above: tuple[Path, ...]) -> Iterator[str]:
    paths = (folder / f"{name}{_SUFFIX}" for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        # It is one of mindrl's own, or its absence has an error of its own.
        return
    if path in above:
        yield f"{path} includes itself: {' -> '.join(each.stem for each in (*above, path))}"
        return
    try:
        values = _values(path)
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        yield f"{path}{_reason(error)}"
        return
    if not isinstance(values, dict):
        yield f"{path} must hold sections with keys"
        return
    defaults = values.pop("defaults", [])
    yield from (f"{path}: {each}" for each in wrong_sections(values))
    if not isinstance(defaults, list):
        yield f"{path}: defaults={defaults} must be a list of names"
        return
    for entry in defaults:
        if not isinstance(entry, str) and not (isinstance(entry, Mapping) and len(entry) == 1):
            yield f"{path}: the entry {entry} of defaults must be a name, or group: name"
            return
        yield from _troubles(_file_name(entry), folders, (*above, path))


def _values(path: Path) -> Any:
    """Read a file as Hydra does; bytes first, whose errors know the line."""
    path.read_bytes().decode("utf-8")
    return OmegaConf.to_container(OmegaConf.load(path))


def _file_name(entry: str | Mapping[str, Any]) -> str:
    """Return the file of an entry: `name`, `group: name`, `override /group@place: name`."""
    parts = [entry] if isinstance(entry, str) else [*map(str, next(iter(entry.items())))]
    parts[0] = parts[0].rpartition(" ")[2].partition("@")[0].lstrip("/")
    return "/".join(parts)


def _reason(error: Exception) -> str:
    """Say what keeps a file from being read, and in which line."""
    match error:
        case UnicodeDecodeError():
            line = error.object[: error.start].count(b"\n") + 1
            return f", line {line}: the byte {error.object[error.start]:#x} is not UTF-8"
        case RecursionError():
            return " is nested without end"
        case yaml.MarkedYAMLError() if error.problem_mark is not None:
            text = " ".join(filter(None, [error.context, error.problem]))
            return f", line {error.problem_mark.line + 1}: {text}"
        case OSError():
            return f": {error.strerror or error}"
    return f": {in_words(error)}"
