"""The plan of memory as a sub-command: `python cli/plan.py memory ...`. Needs no torch."""

import argparse
from dataclasses import asdict

from rich.console import Console

from mindrl.errors import DeviceMemoryError
from mindrl.observability.units import memory_text
from mindrl.preflight.memory_figures import MemoryFigures, figures_of
from mindrl.preflight.memory_plan import memory_plan, plan_without_kv_cache
from mindrl.preflight.run_shardings import planned_shardings
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.programs.exits import FAILED, report
from mindrl.programs.memory_table import print_memory
from mindrl.programs.plan_options import (
    add_run_options,
    device_bytes,
    planned_config,
    print_answer,
)

_EXAMPLE = """\
example:
  python cli/plan.py memory --config-name grpo_qwen25_7b

Of each model folder only config.json is read; where the folder is not here, the shipped sizes of
configs/models are taken and named. The exit code is 1 where the run does not fit,
2 where the configuration cannot run at all.
"""


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
    add_run_options(memory)
    memory.set_defaults(run=_memory)


def _memory(options: argparse.Namespace) -> int:
    config = planned_config(options)
    capacity_bytes = device_bytes(config, options)
    models = planned_shardings(config)
    refusal = []
    try:
        plan = memory_plan(models, capacity_bytes)
    except DeviceMemoryError as error:
        plan = plan_without_kv_cache(models, capacity_bytes)
        refusal = [str(error)]
    figures = figures_of(plan, models)
    if options.json:
        print_answer(config, asdict(figures))
    else:
        note_shipped_sizes(config)
        print_memory(figures, Console())
    refusal += _refusal(figures)
    return report(refusal, FAILED) if refusal else 0


def _refusal(figures: MemoryFigures) -> list[str]:
    if figures.fits is not False or figures.capacity_bytes is None:
        return []
    needed, there = memory_text(figures.peak_bytes), memory_text(figures.capacity_bytes)
    moment = figures.peak_moment.replace("_", " ")
    return [f"{moment} takes {needed} of a device that has {there}"]
