"""The configuration of a run, from its file and the overrides of the command line.

Nothing is started and no run folder is made.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from mindrl.allocation.into_config import deprecation, with_sizes
from mindrl.config.hydra_defaults import plain_values, register_defaults
from mindrl.config.load import field_names, load_run_config, suggest
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.launch.exits import note
from mindrl.launch.shipped import config_folder

_DEFAULTS = re.compile("^defaults:", re.MULTILINE)


def composed_config(
    name: str, overrides: Sequence[str], own_folder: str | None = None
) -> RunConfig:
    """Read a configuration by name, with overrides such as `actor_config.lr=1e-6`.

    Args:
        name: Of a file, without its suffix.
        overrides: As a training program takes them.
        own_folder: Where it is, beside the shipped ones; None is the folder of those.

    Raises:
        ConfigError: It does not exist, or a key or a value is not legal.
    """
    shipped = config_folder()
    folder = shipped if own_folder is None else Path(own_folder).resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {own_folder}: no such folder")
    register_defaults()
    try:
        check_overrides(overrides)
        with initialize_config_dir(str(folder), version_base="1.3"):
            also = [] if folder == shipped else [f"hydra.searchpath=['file://{shipped}']"]
            return run_config(compose(name, overrides=[*overrides, *also]))
    except MissingConfigException as error:
        raise no_such_config(error, folder) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error


def run_config(composed: DictConfig) -> RunConfig:
    """Turn what Hydra composed into the configuration of a run; says what is deprecated.

    Raises:
        ConfigError: A key or a value is not legal.
    """
    values = plain_values(composed)
    sized = with_sizes(values)
    if (old := deprecation(values)) is not None:
        note(old)
    return load_run_config(sized)


def no_such_config(error: MissingConfigException, folder: Path) -> ConfigError:
    """Say which configurations there are."""
    there = ", ".join(run_names(folder))
    return ConfigError(
        f"{folder} has no configuration {error.missing_cfg_file}; there are: {there}"
    )


def run_names(folder: Path) -> list[str]:
    """Return the names of the runs in a folder of configurations.

    What runs only name in their `defaults` has no such list itself.
    """
    files = (path for path in folder.glob("*.yaml") if path.stem != "program")
    return sorted(path.stem for path in files if _DEFAULTS.search(path.read_text("utf-8")))


def check_overrides(arguments: Sequence[str]) -> None:
    """Refuse overrides of keys that do not exist, and say which was probably meant.

    Raises:
        ConfigError: All such keys, one a line.
    """
    texts = [argument for argument in arguments if "=" in argument and argument[0] != "-"]
    findings = []
    for override in OverridesParser.create().parse_overrides(texts):
        path = override.key_or_group.split(".")
        if path[0] == "hydra" or "/" in override.key_or_group:
            continue
        for depth, key in enumerate(path):
            known = field_names(path[:depth])
            if known and key not in known:
                hint = suggest(path[:depth], key)
                findings.append(f"{override.key_or_group} is not a configuration key; {hint}")
                break
    if findings:
        raise ConfigError("\n".join(findings))
