"""The configuration of a run, from its file and the overrides of the command line.

Nothing is started and no run folder is made.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mindrl.allocation.into_config import deprecation, with_sizes
from mindrl.config.hydra_defaults import plain_values, register_defaults
from mindrl.config.load import field_names, load_run_config, suggest, wrong_sections
from mindrl.config.run import RunConfig
from mindrl.config.text import nested
from mindrl.errors import ConfigError, MindrlError
from mindrl.observability.notes import note
from mindrl.preflight.shipped import config_folder
from mindrl.programs.config_files import first_trouble, in_words, no_such_name

_AN_OVERRIDE = (
    "cannot be read: it must be key=value, and text with blanks or any of ,=:()[]{}' stands in "
    "quotes of its own: \"key='a, b'\""
)


def composed_config(
    name: str, overrides: Sequence[str], own_folder: str | None = None
) -> RunConfig:
    """Read a configuration by name, with overrides such as `actor_config.lr=1e-6`.

    It is looked for in the own folder first, then among those that are shipped.

    Raises:
        ConfigError: It does not exist, or a key or a value is not legal.
    """
    own, *shipped = folders = searched(own_folder)
    check_overrides(overrides)
    register_defaults()
    with composing(name, folders), initialize_config_dir(str(own), version_base="1.3"):
        composed = compose(name, overrides=[*overrides, *beside(shipped)])
    return run_config(composed)


def searched(own_folder: str | None) -> list[Path]:
    """Return the folders that configurations are looked for in: one's own, then the shipped.

    Raises:
        ConfigError: The own one is not there.
    """
    shipped = config_folder()
    own = shipped if own_folder is None else Path(own_folder).resolve()
    if not own.is_dir():
        raise ConfigError(f"--config-dir {own_folder}: no such folder")
    return [*dict.fromkeys([own, shipped])]


def beside(folders: Sequence[Path]) -> list[str]:
    """Return the override by which Hydra finds configurations in further folders too."""
    places = ",".join(f"'file://{folder}'" for folder in folders)
    return [f"hydra.searchpath=[{places}]"] if places else []


def run_config(composed: DictConfig) -> RunConfig:
    """Turn what Hydra composed into the configuration of a run; says what is deprecated.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    try:
        values = plain_values(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(in_words(error)) from error
    sized = with_sizes(values)
    if (old := deprecation(values)) is not None:
        note(old)
    return load_run_config(sized)


@contextmanager
def composing(name: str, folders: Sequence[Path]) -> Iterator[None]:
    """Turn what Hydra, OmegaConf and PyYAML raise of a configuration into words.

    Raises:
        ConfigError: Something else than mindrl has refused the configuration.
    """
    try:
        yield
    except MindrlError:
        raise
    except MissingConfigException as error:
        # The file itself, or one that its defaults name.
        missing = str(error.missing_cfg_file)
        asked = name if missing == name.lstrip("/") else missing
        raise ConfigError(no_such_name(asked, folders)) from error
    except Exception as error:
        # Their parsers raise errors of many kinds for what a file may hold.
        raise ConfigError(first_trouble(name, folders) or in_words(error)) from error


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuse overrides that cannot be read or whose keys do not exist.

    Raises:
        ConfigError: All of them, one a line, with what was probably meant.
    """
    texts = [argument for argument in arguments if "=" in argument[1:] and argument[0] != "-"]
    if findings := [found for text in texts if (found := _trouble(text))]:
        raise ConfigError("\n".join(findings))


def _trouble(argument: str) -> str | None:
    """Say what is wrong with an override."""
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException:
        return f"{argument} {_AN_OVERRIDE}"
    name = override.key_or_group
    if name.startswith("hydra.") or "/" in name:
        return None
    path = name.split(".")
    for depth, key in enumerate(path):
        if key not in field_names(path[:depth]):
            return f"{name} is not a configuration key; {suggest(path[:depth], key)}"
    if override.is_delete() or override.is_sweep_override():
        return None
    return next(wrong_sections(nested({name: override.value()})), None)
