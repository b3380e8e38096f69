"""Shared parts of the plans: options, checks, and the memory of a device."""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.platform.device_models import EXAMPLE_DEVICE, device_model
from mindrl.preflight.checks import refuse
from mindrl.preflight.model_checks import ROLLOUT_KEYS, training_findings
from mindrl.preflight.run_shardings import RunPlan, RunShardings, unordered_shardings
from mindrl.preflight.shipped import note_shipped_sizes, shipped_sizes
from mindrl.programs.arguments import add_overrides, gib
from mindrl.programs.command_line import refuse_no_name
from mindrl.programs.compose import composed_config
from mindrl.programs.exits import print_json
from mindrl.rollout.planning import rollout_findings

Shows = Callable[[], None]
"""Prints an answer as text."""


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the configuration, the device memory and JSON output."""
    add = parser.add_argument
    add("--config-name", metavar="NAME", help="name of a file in configs/; required")
    add("--config-dir", metavar="DIR", help="folder of that file (default: configs/)")
    add_overrides(parser)
    memory = parser.add_mutually_exclusive_group()
    text = "memory of a device, instead of rl_config.device_memory_mib"
    size = memory.add_argument
    size("--device-memory-gib", type=gib, dest="device_bytes", metavar="N", help=text)
    size("--device", metavar="NAME", help=f"name of the device instead, such as {EXAMPLE_DEVICE}")
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")


def chosen_config(options: argparse.Namespace) -> RunConfig:
    """Return the configuration that the options name.

    Raises:
        ConfigError: It is missing or does not exist, or a key or a value is not legal.
    """
    if options.config_name is None:
        refuse_no_name(options.overrides)
    return composed_config(options.config_name, options.overrides, options.config_dir)


def chosen_shardings(options: argparse.Namespace) -> RunShardings:
    """Return the models of a plan with their layouts; ranks are in the engine's own order.

    Raises:
        ConfigError: It cannot be read, or cannot run with any amount of memory.
        ModelError: A model folder does not contain a known model.
    """
    config = chosen_config(options)
    refuse(config, findings(config))
    models = unordered_shardings(config)
    refuse(config, _model_findings(models.plan))
    return models


def answer(
    options: argparse.Namespace, config: RunConfig, figures: dict[str, Any], show: Shows
) -> None:
    """Print figures as one JSON object or as text, with a note if shipped sizes were used."""
    if options.json:
        print_json(figures | {"shipped_sizes": shipped_sizes(config)})
    else:
        note_shipped_sizes(config)
        show()


def device_bytes(config: RunConfig, options: argparse.Namespace) -> int | None:
    """Return the memory of a device in bytes: from the command line, else the configuration.

    Raises:
        ConfigError: The name of the device is unknown.
    """
    asked: int | None = options.device_bytes
    if options.device is not None:
        return device_model(options.device).memory_bytes
    return config.rl_config.device_memory_bytes if asked is None else asked


def _model_findings(plan: RunPlan) -> Iterator[Finding]:
    """Yield the reasons why the layouts cannot shard the models."""
    for role, model in plan.models.items():
        yield from training_findings(plan.config, role, model, plan.models["actor"])
        if role == "actor":
            yield from rollout_findings(model, plan.rollout, ROLLOUT_KEYS)
