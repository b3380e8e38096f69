"""The plan of memory as a sub-command: `python cli/plan.py memory ...`. Needs no torch."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console

from mindrl.allocation.from_config import role_layout, rollout_layout
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.launch.arguments import positive
from mindrl.launch.compose import composed_config
from mindrl.launch.exits import FAILED, report
from mindrl.launch.memory_figures import MemoryFigures, figures_of
from mindrl.launch.memory_plan import memory_plan, plan_without_kv_cache
from mindrl.launch.memory_regions import read_models
from mindrl.launch.memory_table import memory_text, print_memory
from mindrl.models.description import read_description
from mindrl.models.legality import rollout_findings, training_findings

_EXAMPLE = """\
example:
  python cli/plan.py memory --config-name grpo_qwen25_7b actor_config.load=models/Qwen2.5-7B \\
      --device-memory-gib 64

Of each model folder only config.json is read. The exit code is 1 where the run does not fit,
2 where the configuration cannot run at all.
"""
_DEVICE_KEY = "rl_config.device_memory_mib"
_ROLLOUT_KEYS = {
    "tp": "generate_config.infer_tensor_parallel_size",
    "ep": "generate_config.infer_expert_parallel_size",
}


def add_memory_parser(plans: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    memory = plans.add_parser(
        "memory",
        help="what lies on each device in each phase of a step, and whether it fits",
        description="Predict the memory of a run's steps from its configuration: phase by phase, "
        "the peak, and which key would lower it.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = memory.add_argument
    add("--config-name", required=True, metavar="NAME", help="of a file in configs/")
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    add(
        "--device-memory-gib",
        type=positive,
        metavar="N",
        help=f"memory of a device, where the configuration has no {_DEVICE_KEY}",
    )
    add("--json", action="store_true", help="print one JSON object, all sizes in bytes")
    memory.set_defaults(run=_memory)


def _memory(options: argparse.Namespace) -> int:
    config = composed_config(options.config_name, options.overrides)
    found = [*findings(config)] or [*_model_findings(config)]
    if found:
        raise ConfigError("\n".join(found))
    capacity_bytes = _capacity_bytes(config, options.device_memory_gib)
    models = read_models(config)
    refusal = []
    try:
        plan = memory_plan(config, capacity_bytes, models)
    except DeviceMemoryError as error:
        plan = plan_without_kv_cache(config, capacity_bytes, models)
        refusal = [str(error)]
    figures = figures_of(config, plan, models)
    if options.json:
        sys.stdout.write(json.dumps(asdict(figures), indent=2) + "\n")
    else:
        print_memory(figures, Console())
    refusal += _refusal(figures)
    return report(refusal, FAILED) if refusal else 0


def _refusal(figures: MemoryFigures) -> list[str]:
    if figures.fits is not False or figures.capacity_bytes is None:
        return []
    needed, there = memory_text(figures.peak_bytes), memory_text(figures.capacity_bytes)
    moment = figures.peak_moment.replace("_", " ")
    return [f"{moment} takes {needed} of a device that has {there}"]


def _capacity_bytes(config: RunConfig, asked_gib: float | None) -> int | None:
    configured = config.rl_config.device_memory_mib
    if configured is not None and asked_gib is not None:
        raise ConfigError(f"--device-memory-gib: {_DEVICE_KEY}={configured} says it already")
    if asked_gib is not None:
        return int(asked_gib * (1 << 30))
    return None if configured is None else configured << 20


def _model_findings(config: RunConfig) -> Iterator[str]:
    """Say what keeps the models from being cut by their layouts."""
    for role in config.roles:
        model = read_description(config.model_path(role), to_plan=True)
        keys = config.layout_sizes(role).keys
        yield from training_findings(model, role_layout(config, role), keys)
        if role == "actor":
            yield from rollout_findings(model, rollout_layout(config), _ROLLOUT_KEYS)
