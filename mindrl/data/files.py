"""Expand the paths of a configuration (files, folders, patterns). Reads no rows."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from mindrl.config.data import DataPath, paths_of
from mindrl.config.data_rules import SUFFIXES, data_keys, is_pattern
from mindrl.config.finding import repeated
from mindrl.config.run import RunConfig
from mindrl.errors import DataError

_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
"""Prefixes of file names that mark a split of a data set."""


def files_of(paths: DataPath | None) -> tuple[str, ...]:
    """Return the data files that paths name, in their order.

    Files of a folder, or of a pattern such as `data/train-*.parquet`, are sorted by name.

    Raises:
        DataError: A path names no file, or a folder mixes training and test files.
    """
    found = tuple(chain.from_iterable(map(_files_at, paths_of(paths))))
    if twice := repeated(found):
        raise DataError(f"data file {twice[0]} is listed more than once in {', '.join(found)}")
    return found


def data_is_here(config: RunConfig) -> bool:
    """Return whether all data files of a configuration exist on this machine."""
    try:
        files = [file for key in data_keys(config) for file in files_of(config.value_of(key))]
    except DataError:
        return False
    return all(Path(file).is_file() for file in files)


def _files_at(path: str) -> Sequence[str]:
    if is_pattern(path):
        anchor = Path(path).anchor
        pattern = path.removeprefix(anchor)
        found = sorted(each for each in Path(anchor or ".").glob(pattern) if _is_data(each))
        if not found:
            raise DataError(f"{path}: the pattern matches no {_suffixes()} file")
        return [*map(str, found)]
    if not Path(path).is_dir():
        return [path]
    found = sorted(each for each in Path(path).iterdir() if _is_data(each))
    if not found:
        raise DataError(f"folder {path} has no {_suffixes()} file{_below(Path(path))}")
    splits = {split: each.name for each in found if (split := _split_of(each))}
    if len(splits) > 1:
        names = " beside ".join(splits.values())
        raise DataError(f"folder {path} has {names}; list its files, or write {path}/train*")
    return [*map(str, found)]


def _is_data(file: Path) -> bool:
    return file.is_file() and file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _split_of(file: Path) -> str | None:
    stem = file.stem.lower()
    return next((split for split in _SPLITS if stem.startswith(split)), None)


def _below(folder: Path) -> str:
    """Return a hint that lists subfolders with data: hub data sets have one per subset."""
    found = {each.parent for each in folder.glob("*/*") if _is_data(each)}
    return f"; below it {', '.join(sorted(map(str, found)))} do" if found else ""


def _suffixes() -> str:
    return " or ".join(SUFFIXES)
