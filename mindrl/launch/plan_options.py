"""What the plans of a configuration share: its options, its refusal, the memory of a device."""

import argparse
from collections.abc import Iterator

from mindrl.allocation.from_config import role_layout, rollout_layout
from mindrl.allocation.into_config import in_words_of_backend
from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.launch.arguments import positive
from mindrl.launch.compose import composed_config
from mindrl.launch.model_checks import ROLLOUT_KEYS
from mindrl.launch.shipped import planned_description
from mindrl.models.legality import rollout_findings, training_findings

_DEVICE_KEY = "rl_config.device_memory_mib"


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what names a run, its devices and the form of the answer."""
    add = parser.add_argument
    add("--config-name", required=True, metavar="NAME", help="of a file in configs/")
    add("--config-dir", metavar="DIR", help="folder of a file of your own, in place of configs/")
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    add(
        "--device-memory-gib",
        type=positive,
        metavar="N",
        help=f"memory of a device, in place of the configuration's {_DEVICE_KEY}",
    )
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")


def planned_config(options: argparse.Namespace) -> RunConfig:
    """Read the configuration of a plan.

    Raises:
        ConfigError: It cannot be read, or cannot run whatever memory there is.
    """
    config = composed_config(options.config_name, options.overrides, options.config_dir)
    found = [*findings(config)] or [*_model_findings(config)]
    if found:
        raise ConfigError("\n".join(str(in_words_of_backend(config, each)) for each in found))
    return config


def device_bytes(config: RunConfig, asked_gib: float | None) -> int | None:
    """Return the memory of a device: what the command line asks for, else the configuration."""
    configured = config.rl_config.device_memory_mib
    if asked_gib is not None:
        return int(asked_gib * (1 << 30))
    return None if configured is None else configured << 20


def _model_findings(config: RunConfig) -> Iterator[Finding]:
    """Say what keeps the models from being cut by their layouts."""
    for role in config.roles:
        model = planned_description(config.model_path(role))
        keys = config.layout_sizes(role).keys
        yield from training_findings(model, role_layout(config, role), keys)
        if role == "actor":
            yield from rollout_findings(model, rollout_layout(config), ROLLOUT_KEYS)
