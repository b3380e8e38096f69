"""The files of a configuration: list them, and explain why one cannot be read."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mindrl.config.load import wrong_sections
from mindrl.config.yaml_bounds import bounded_graph
from mindrl.errors import ConfigError
from mindrl.programs.hydra_words import why_unreadable

SUFFIX = ".yaml"
RECIPE = "recipe"
"""Folder of configurations that are added to a run: `+recipe=gspo`."""
_NO_RUN = "program"
"""A file with a `defaults` list that is not a run itself."""
_DEFAULTS = "defaults: [mindrl_defaults, program, _self_]"
"""First line of a configuration."""


def run_names(folder: Path) -> list[str]:
    """Return the sorted names of the runs in a folder of configurations.

    A file without a `defaults` list is no run; runs include it.
    """
    files = (path for path in folder.glob(f"*{SUFFIX}") if path.stem != _NO_RUN)
    return sorted(path.stem for path in files if b"\ndefaults:" in b"\n" + _content(path))


def _content(path: Path) -> bytes:
    """Return the contents of a file; empty if it is not a regular file or cannot be read."""
    with suppress(OSError):
        return path.read_bytes() if path.is_file() else b""
    return b""


def check_files(name: str, folders: Sequence[Path]) -> None:
    """Check for files that Hydra would not finish reading, or would read without defaults.

    The file, and those in its `defaults`, may be in any of the folders.

    Raises:
        ConfigError: A file is too large or a folder, or the first has no list of defaults.
    """
    seen: set[Path] = set()
    names = [name]
    while names:
        file = f"{names.pop()}{SUFFIX}"
        path = next((each / file for each in folders if _exists(each / file)), None)
        if path is None or path in seen:
            continue
        if not path.is_file():
            raise ConfigError(f"{path} is not a file; use a file such as mine{SUFFIX}")
        # Other errors are reported after Hydra has failed.
        with suppress(OSError, RecursionError, UnicodeError, yaml.YAMLError):
            root = bounded_graph(path)
            # A run folder's file contains every key.
            if not (seen or path.parent.name == ".hydra" or _has_defaults(root)):
                need = f"add this first line: {_DEFAULTS}"
                raise ConfigError(f"{path} has no defaults list; {need}")
            names += map(_file_name, _entries(root))
        seen.add(path)


def _exists(path: Path) -> bool:
    """Return whether a path exists; False if the name is not a valid path."""
    with suppress(OSError, ValueError):
        return path.exists()
    return False


def _has_defaults(root: yaml.Node | None) -> bool:
    """Return whether a file has a `defaults` list; True too if it is no mapping, a worse error."""
    if not isinstance(root, yaml.MappingNode):
        return root is not None
    return any(key.value == "defaults" for key, _ in root.value)


def _entries(root: yaml.Node | None) -> Iterator[str | dict[str, Any]]:
    """Yield the entries of the list of defaults that name files."""
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    lists = [listed for key, listed in pairs if key.value == "defaults"]
    for entry in (each for listed in lists for each in _below(listed, yaml.SequenceNode)):
        if isinstance(entry, yaml.ScalarNode):
            yield entry.value
        for group, chosen in _below(entry, yaml.MappingNode):
            if isinstance(group, yaml.ScalarNode) and isinstance(chosen, yaml.ScalarNode):
                yield {group.value: chosen.value}


def _below(node: yaml.Node, kind: type[yaml.Node]) -> list[Any]:
    return node.value if isinstance(node, kind) else []


def no_such_name(name: str, folders: Sequence[Path], *, takes_paths: bool = False) -> str:
    """Return the text of a missing configuration: the existing names and the closest one.

    The first folder is the user's own. With `takes_paths` the name may be a path of the working
    folder.
    """
    path = Path(f"{name}{SUFFIX}")
    known = [each for folder in folders for each in run_names(folder)]
    there = run_names(folders[0])
    if path.parent.name == RECIPE:
        files = (each for folder in folders for each in (folder / RECIPE).glob(f"*{SUFFIX}"))
        known = there = sorted({each.stem for each in files})
    shown = {each: f"{each}{SUFFIX}" for each in run_names(Path())} if takes_paths else {}
    shown |= {each: each for each in known}
    hint = f"known: {', '.join(there)}"
    if Path(name).is_file():
        hint = f"configuration files end in {SUFFIX}"
    elif takes_paths and path.is_file():
        hint = f"to use {path} of the working folder, write --config-name {path}"
    elif near := difflib.get_close_matches(path.stem, shown, n=3):
        *others, last = (shown[each] for each in near)
        meant = " or ".join(filter(None, (", ".join(others), last)))
        hint = f"did you mean {meant}? {hint}"
    if takes_paths and "/" in name:
        return f"{path}: no such file; {hint}"
    return f"{folders[0]} has no configuration {name}; {hint}"


def troubles(name: str, folders: Sequence[Path], above: tuple[Path, ...]) -> Iterator[str]:
    """Yield which file cannot be read and why: the named one, then those in its `defaults`."""
    paths = (folder / f"{name}{SUFFIX}" for folder in folders)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        # It is one of mindrl's own, or another error reports that it is missing.
        return
    if path in above:
        yield f"{path} includes itself: {' -> '.join(each.stem for each in (*above, path))}"
        return
    try:
        # Read it as Hydra does, but decode the bytes first for errors that contain the line.
        path.read_bytes().decode("utf-8")
        values: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        yield f"{path}{why_unreadable(error)}"
        return
    if not isinstance(values, dict):
        yield f"{path} must contain sections with keys"
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
        yield from troubles(_file_name(entry), folders, (*above, path))


def _file_name(entry: str | Mapping[str, Any]) -> str:
    """Return the file of an entry: `name`, `group: name`, `override /group@place: name`."""
    parts = [entry] if isinstance(entry, str) else [*map(str, next(iter(entry.items())))]
    parts[0] = parts[0].rpartition(" ")[2].partition("@")[0].lstrip("/")
    return "/".join(parts)
