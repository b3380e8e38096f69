"""Register every key with its default in Hydra, so that the command line can override it."""

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from mindrl.config.environment import EnvironmentConfig
from mindrl.config.layout_keys import ROLLOUT_SIZE_KEYS, SIZE_KEYS
from mindrl.config.preference import PreferenceConfig
from mindrl.config.role import CriticConfig, RewardConfig
from mindrl.config.run import RunConfig
from mindrl.config.sft import SFTConfig
from mindrl.config.teacher import TeacherConfig

NAME = "mindrl_defaults"
"""First entry of the `defaults` list of a configuration file."""

_OPTIONAL = {
    "critic": CriticConfig,
    "environment": EnvironmentConfig,
    "preference": PreferenceConfig,
    "reward": RewardConfig,
    "sft": SFTConfig,
    "teacher": TeacherConfig,
}
"""Optional sections. A file that has one lists its entry, such as `mindrl_critic_defaults`, after
the first entry: all keys of the section can then be overridden."""
OPTIONAL_SIZES = frozenset({*SIZE_KEYS.values(), *ROLLOUT_SIZE_KEYS.values(), "num_npus"})
"""Keys that a backend string may set instead: null means not given, even if there is a default."""


def register_defaults() -> None:
    """Register `mindrl_defaults` in Hydra, and the defaults of optional sections."""
    store = ConfigStore.instance()
    store.store(name=NAME, node=_defaults(RunConfig))
    for role, kind in _OPTIONAL.items():
        store.store(name=f"mindrl_{role}_defaults", node={f"{role}_config": _defaults(kind)})


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """Convert a composed configuration to plain values, without keys that are not set."""
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    return _without_missing(values)


def _defaults(section: Any) -> dict[str, Any]:
    hints = get_type_hints(section)
    values: dict[str, Any] = {}
    for field in fields(section):
        if is_dataclass(hints[field.name]):
            values[field.name] = _defaults(hints[field.name])
        elif field.default is MISSING:
            values[field.name] = "???"
        else:
            default = None if field.name in OPTIONAL_SIZES else field.default
            values[field.name] = list(default) if isinstance(default, tuple) else default
    return values


def _without_missing(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_missing(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value != "???"
    }
