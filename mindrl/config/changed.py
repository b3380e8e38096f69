"""Change values of a configuration."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mindrl.config.model_folders import folder_keys
from mindrl.config.run import RunConfig

_PATHS = (
    *("actor_config.lora.load", "generate_config.speculative_config.model"),
    *("data_config.images.folder", "profiler_config.profile_save_path"),
)
"""Keys of files and folders that workers read or write, in addition to models."""


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths, valid in any worker's folder."""
    for key in (*folder_keys(config), *_PATHS):
        if (path := config.value_of(key)) is not None:
            config = with_value(config, key, str(Path(path).absolute()))
    return config


def with_value(section: Any, key: str, value: object) -> Any:
    """Return a section with a new value of a dotted key.

    Raises:
        ValidationError: The value is invalid for the key.
    """
    name, _, inner = key.partition(".")
    if isinstance(section, tuple):
        place = int(name)
        return (*section[:place], with_value(section[place], inner, value), *section[place + 1 :])
    changed = with_value(getattr(section, name), inner, value) if inner else value
    return replace(section, **{name: changed})
