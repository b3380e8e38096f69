"""The configuration of a run, from its file and the overrides of the command line.

Nothing is started and no run folder is made. What is wrong with either is said in words.
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
    """Read a configuration by name, with overrides such as `actor_config.lr=1e-6`.

    With `downloads` what the hub's cache lacks comes from the hub, if the configuration allows it.

    Raises:
        ConfigError: It does not exist, or a key or a value is not legal.
    """
    config = on_its_own_devices(run_config(composed(name, overrides, own_folder)))
    return with_local_folders(config, downloads=downloads)


def composed(name: str, overrides: Sequence[str], own_folder: str | None = None) -> DictConfig:
    """Compose a configuration by name, as Hydra keeps it in a run folder; raises as above."""
    name, own_folder = located(name, own_folder)
    with (
        composing(name, own_folder, overrides) as (folder, more),
        initialize_config_dir(folder, version_base="1.3"),
    ):
        found: DictConfig = compose(name, overrides=[*overrides, *more])
    return found


def override(key: str, value: object) -> str:
    """Write an override from a value: a number, a text, a truth value, None, lists and sections.

    Raises:
        ConfigError: No override can name a key of a section.
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
    """Write a key of a section, which Hydra takes without quotation marks only."""
    parser = OverridesParser.create()
    try:
        read = parser.parse_override(f"section={{{key}:null}}").value()
    except HydraException:
        read = None
    # It reads nan and inf as numbers, null and true as what they stand for.
    if not isinstance(read, dict) or list(read) != [key]:
        raise ConfigError(f"{key!r} cannot be a key in an override; write it in a YAML file")
    return str(key)


def located(name: str, own_folder: str | None) -> tuple[str, str | None]:
    """Return name and folder of a configuration, which its path may name too.

    A path is one from the working folder, or from the folder of configurations.

    Raises:
        ConfigError: No file can have such a name, or a folder has it.
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
    """Refuse what no file can be called."""
    try:
        is_path(f"{stem}{SUFFIX}")
    except PydanticCustomError as error:
        raise ConfigError(f"--config-name {quoted(stem)} {error.message()}") from error


def _quoted(text: str) -> str:
    """Write a text so that an override reads it as it is."""
    # Backslashes count only before a quotation mark, and so do those at the end.
    marked = re.sub(r"(\\*)'", r"\1\1\\'", text.replace("${", r"\${"))
    last = len(marked) - len(marked.rstrip("\\"))
    return "'" + marked + "\\" * last + "'"


def run_config(composed: DictConfig) -> RunConfig:
    """Turn what Hydra composed into the configuration of a run; says what is deprecated.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    try:
        values = plain_values(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(in_our_words(error)) from error
    return configured(values)


def configured(values: Mapping[str, Any]) -> RunConfig:
    """Turn the plain values of all sections into the configuration of a run.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    # Strings are compared with the keys beside them, which have the right types from here on.
    load_run_config(without_unset(values), other_name)
    sized = with_sizes(values)
    if (old := deprecation(values)) is not None:
        note(old)
    return load_run_config(sized, other_name)


@contextmanager
def composing(
    name: str, own_folder: str | None, overrides: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Prepare Hydra for a configuration, and say in words what it and its parsers raise of one.

    It is looked for in the own folder first, then among those that are shipped.

    Yields:
        The first folder, and the override by which Hydra finds configurations in the other too.

    Raises:
        ConfigError: There is no such folder, or an override or the configuration is not legal.
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
        yield str(own), [f"hydra.searchpath=['file://{each}']" for each in folders[1:]]
    except MindrlError:
        raise
    except MissingConfigException as error:
        # The file itself, or one that its defaults name.
        missing = str(error.missing_cfg_file)
        asked = name if missing == name.lstrip("/") else missing
        raise ConfigError(no_such_name(asked, folders)) from error
    except Exception as error:
        # Their parsers raise errors of many kinds for what a file may hold.
        trouble = next(troubles(name.removesuffix(SUFFIX), folders, ()), None)
        raise ConfigError(trouble or in_our_words(error)) from error
