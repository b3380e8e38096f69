"""Compose the configuration of a run from its file and the command-line overrides.

Nothing is started and no run folder is made. Hydra's errors are replaced by readable ones.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic_core import PydanticCustomError

from mindrl.allocation.into_config import deprecation, with_sizes, without_unset
from mindrl.config.halves import on_its_own_devices
from mindrl.config.hydra_defaults import plain_values, register_defaults
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.section import is_path
from mindrl.errors import ConfigError, MindrlError
from mindrl.migrate.names import other_name
from mindrl.observability.terminal import note
from mindrl.observability.units import quoted
from mindrl.preflight.hub import with_local_folders
from mindrl.preflight.shipped import config_folder
from mindrl.programs.command_line import check_overrides
from mindrl.programs.config_files import SUFFIX, check_files, no_such_name, troubles
from mindrl.programs.hydra_words import in_our_words

_EXAMPLE = "grpo_tiny_cpu"


def composed_config(
    name: str,
    overrides: Sequence[str],
    own_folder: str | None = None,
    *,
    downloads: bool = False,
) -> RunConfig:
    """Return the configuration of a name, with overrides such as `actor_config.lr=1e-6`.

    With `downloads`, files that are not in the hub's cache are downloaded, if the configuration
    allows it.

    Raises:
        ConfigError: It does not exist, or a key or a value is not legal.
    """
    config = on_its_own_devices(run_config(composed(name, overrides, own_folder)))
    return with_local_folders(config, downloads=downloads)


def composed(name: str, overrides: Sequence[str], own_folder: str | None = None) -> DictConfig:
    """Compose a configuration as Hydra stores it in a run folder; raises as `composed_config`."""
    name, own_folder = located(name, own_folder)
    with (
        composing(name, own_folder, overrides) as (folder, more),
        initialize_config_dir(folder, version_base="1.3"),
    ):
        found: DictConfig = compose(name, overrides=[*overrides, *more])
    return found


def override(key: str, value: object) -> str:
    """Return the override that sets a key to a number, text, bool, None, list or section.

    Raises:
        ConfigError: An override cannot express a key of a section.
    """
    return f"{key}={_spelled(value)}"


def _spelled(value: object) -> str:
    match value:
        case Mapping():
            pairs = (f"{_key(key)}:{_spelled(each)}" for key, each in value.items())
            return f"{{{','.join(pairs)}}}"
        case list() | tuple():
            return f"[{','.join(map(_spelled, value))}]"
        case str() | Path():
            return _quoted(str(value))
        case _:
            return "null" if value is None else str(value).lower()


def _key(key: object) -> str:
    """Return a key of a section as written in an override; Hydra accepts no quoted keys."""
    parser = OverridesParser.create()
    try:
        read = parser.parse_override(f"section={{{key}:null}}").value()
    except HydraException:
        read = None
    # Hydra parses nan, inf, null and true as values, not as text.
    if not isinstance(read, dict) or list(read) != [key]:
        raise ConfigError(f"{key!r} cannot be a key in an override; write it in a YAML file")
    return str(key)


def located(name: str, own_folder: str | None) -> tuple[str, str | None]:
    """Return the name and folder of a configuration; the name may also be a path.

    A path is relative to the working folder, or to the folder of configurations.

    Raises:
        ConfigError: An option is empty, no file can have the name, or it is a folder.
    """
    for option, given, example in (
        ("--config-name", name, _EXAMPLE),
        ("--config-dir", own_folder, "configs"),
    ):
        if given is not None and not given.strip():
            raise ConfigError(f"{option} needs a value: {option} {example}")
    stem = name.removesuffix(SUFFIX)
    _check_name(stem)
    file = Path(f"{stem}{SUFFIX}")
    folders = [Path(own_folder or config_folder())] if "/" in stem else []
    if own_folder is None and (folders or name != stem):
        folders.insert(0, Path())
    found = next((folder / file for folder in folders if (folder / file).is_file()), None)
    return (stem, own_folder) if found is None else (found.stem, str(found.parent))


def _check_name(stem: str) -> None:
    """Raise a ConfigError for a text that cannot be a file name."""
    try:
        is_path(f"{stem}{SUFFIX}")
    except PydanticCustomError as error:
        raise ConfigError(f"--config-name {quoted(stem)} {error.message()}") from error


def _quoted(text: str) -> str:
    """Return a text quoted for an override, so that Hydra reads it unchanged."""
    # Hydra interprets backslashes only before a quotation mark, including the closing one.
    marked = re.sub(r"(\\*)'", r"\1\1\\'", text.replace("${", r"\${"))
    last = len(marked) - len(marked.rstrip("\\"))
    return "'" + marked + "\\" * last + "'"


def run_config(composed: DictConfig) -> RunConfig:
    """Convert Hydra's result to the configuration of a run; prints a deprecation, if any.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    try:
        values = plain_values(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(in_our_words(error)) from error
    return configured(values)


def configured(values: Mapping[str, Any]) -> RunConfig:
    """Convert the plain values of all sections to the configuration of a run.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    # Check types first: what follows compares texts with other keys of their section.
    plain = without_unset(values)
    config, sized = load_run_config(plain, other_name), with_sizes(values)
    if (old := deprecation(values)) is not None:
        note(old)
    return config if sized == plain else load_run_config(sized, other_name)


@contextmanager
def composing(
    name: str, own_folder: str | None, overrides: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Prepare Hydra for composing, and convert the errors of Hydra and its parsers.

    Configurations are searched in the own folder first, then among the shipped ones.

    Yields:
        The first folder, and the override that adds the other one to Hydra's search path.

    Raises:
        ConfigError: The folder does not exist, or an override or the configuration is not legal.
    """
    shipped = config_folder()
    own = shipped if own_folder is None else Path(own_folder).resolve()
    if not own.is_dir():
        raise ConfigError(f"--config-dir {own_folder}: no such folder")
    check_overrides(overrides)
    register_defaults()
    folders = [*dict.fromkeys([own, shipped])]
    check_files(name, folders)
    try:
        yield str(own), [override("hydra.searchpath", [f"file://{each}"]) for each in folders[1:]]
    except MindrlError:
        raise
    except MissingConfigException as error:
        # Either the file itself or one in its defaults is missing.
        missing = str(error.missing_cfg_file)
        is_named = missing == name.lstrip("/")
        asked, takes_paths = (name, own_folder is None) if is_named else (missing, False)
        text = no_such_name(asked, folders, takes_paths=takes_paths)
        raise ConfigError(text) from error
    except Exception as error:
        # The parsers raise many types of errors, depending on the contents of the file.
        trouble = next(troubles(name.removesuffix(SUFFIX), folders, ()), None)
        raise ConfigError(trouble or in_our_words(error)) from error
