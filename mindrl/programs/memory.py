"""The plan of memory: `python cli/plan.py memory ...`, its figures and its tables.

Needs no torch.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from mindrl.errors import DeviceMemoryError
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.regions import Phase, Region
from mindrl.memory.schedule import MoveKind
from mindrl.observability.memory_snapshot import MemorySnapshot
from mindrl.observability.units import memory_text, unit_of
from mindrl.preflight.memory_checks import Advice, advice_on
from mindrl.preflight.memory_plan import activation_estimates, memory_plan, plan_without_kv_cache
from mindrl.preflight.run_shardings import RunShardings
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.programs.exits import FAILED, report, say
from mindrl.programs.plan_options import (
    add_run_options,
    asked_shardings,
    device_bytes,
    print_answer,
)

_EXAMPLE = """\
example:
  python cli/plan.py memory --config-name grpo_qwen25_7b

Of each model folder only config.json is read; where the folder is not here, the shipped sizes of
configs/models are taken and named. The exit code is 1 where the run does not fit,
2 where the configuration cannot run at all.
"""


@dataclass(frozen=True, kw_only=True)
class PlannedSnapshot(MemorySnapshot):
    """What lies on the fullest device during a phase or the reshard."""

    activations_estimate_bytes: int | None
    """Comes on top; None where nothing is estimated."""


@dataclass(frozen=True, kw_only=True)
class MemoryFigures:
    """The whole answer; all sizes in bytes."""

    ranks: int
    capacity_bytes: int | None
    fits: bool | None
    """Without activations; None where the capacity is not known."""
    peak_bytes: int
    peak_rank: int
    peak_moment: str
    need_bytes: int
    """The most that one phase, or the reshard, needs on that rank."""
    moments: list[PlannedSnapshot]
    peak_bytes_of_ranks: list[int]
    kv_cache_bytes: int | None
    """None: whatever the device has left."""
    kv_cache_tokens: int | None
    host_bytes: int
    """Of the worker that keeps most on the host."""
    copied_to_host: list[str]
    copied_to_host_bytes: int
    """In one step, by the worker that copies most."""
    copied_to_device: list[str]
    copied_to_device_bytes: int
    advice: list[Advice]


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
    asked = asked_shardings(options)
    config = asked.plan.config
    capacity_bytes, models = device_bytes(config, options), asked.ordered
    refusal = []
    try:
        plan = memory_plan(models, capacity_bytes)
    except DeviceMemoryError as error:
        plan = plan_without_kv_cache(models, capacity_bytes)
        refusal = [str(error)]
    figures = memory_figures(plan, models)
    if options.json:
        print_answer(config, asdict(figures))
    else:
        note_shipped_sizes(config)
        _print(figures, Console())
    if figures.fits is False and figures.capacity_bytes is not None:
        needed, there = memory_text(figures.peak_bytes), memory_text(figures.capacity_bytes)
        refusal.append(f"{spaced(figures.peak_moment)} takes {needed} of a device that has {there}")
    return report(refusal, FAILED) if refusal else 0


def memory_figures(plan: MemoryPlan, models: RunShardings) -> MemoryFigures:
    """Sum up a plan; its moments are those between which memory only grows, or only shrinks."""
    estimates = activation_estimates(models.plan)
    out, back = plan.course.copied_out, plan.course.copied_back
    out_bytes, back_bytes = plan.copied_bytes
    kv_cache = plan.kv_cache_bytes
    return MemoryFigures(
        ranks=plan.world_size,
        capacity_bytes=plan.capacity_bytes,
        fits=None if plan.capacity_bytes is None else plan.fits,
        peak_bytes=plan.peak_bytes,
        peak_rank=plan.peak_rank,
        peak_moment=plan.peak_instant.label,
        need_bytes=plan.need_bytes(plan.peak_rank),
        moments=[
            PlannedSnapshot(
                label=at.label,
                phase=at.phase,
                region_bytes=at.region_bytes,
                activations_estimate_bytes=(
                    estimates.get(Phase(at.phase)) if at.label == at.phase else None
                ),
            )
            for at in plan.of_rank(plan.peak_rank)
            if at.label in (at.phase, MoveKind.RESHARD.value)
        ],
        peak_bytes_of_ranks=plan.totals.max(axis=0).tolist(),
        kv_cache_bytes=kv_cache,
        kv_cache_tokens=None if kv_cache is None else kv_cache // models.plan.kv_bytes_per_token,
        host_bytes=int(plan.host_bytes.max()),
        copied_to_host=[region.value for region in out],
        copied_to_host_bytes=int(out_bytes.max()),
        copied_to_device=[region.value for region in back],
        copied_to_device_bytes=int(back_bytes.max()),
        advice=advice_on(plan, models),
    )


def spaced(name: str) -> str:
    """Spell the name of a region or a moment for a person."""
    return name.replace("_", " ")


def _print(figures: MemoryFigures, console: Console) -> None:
    """Print what lies on the fullest device phase by phase, and what follows from it."""
    size, unit = unit_of(figures.peak_bytes)
    say(f"on the device of rank {figures.peak_rank}, in {unit}\n")
    console.print(_moments(figures.moments, size))
    console.print()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(no_wrap=True)
    for name, text in _facts(figures, size, unit):
        facts.add_row(name, text)
    console.print(facts)
    if figures.advice:
        console.print("\nwhat one key would make of the peak")
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        for _ in range(2):
            table.add_column(justify="right", no_wrap=True)
        for advice in figures.advice:
            peak, saved = _cell(advice.peak_bytes, size), _cell(advice.saved_bytes, size)
            table.add_row(advice.setting, f"{peak} {unit}", f"{saved} {unit} less")
        console.print(table)
    console.print(
        "\nActivations are estimated, for micro-batches of the longest sequences; all else is "
        "exact in a run whose optimizer has made its first step.",
        highlight=False,
    )


def _moments(moments: Sequence[PlannedSnapshot], size: int) -> Table:
    """Lay the moments out side by side, the regions one below the other."""
    table = Table(box=None, header_style="", pad_edge=False)
    table.add_column(no_wrap=True)
    for moment in moments:
        table.add_column(moment.label.replace("_", "\n"), justify="right", no_wrap=True)
    held = {name for moment in moments for name in moment.region_bytes}
    for name in (region.value for region in Region if region.value in held):
        table.add_row(spaced(name), *(_cell(each.region_bytes.get(name), size) for each in moments))
    table.add_row("total", *(_cell(each.total_bytes, size) for each in moments), style="bold")
    estimates = (_cell(each.activations_estimate_bytes, size) for each in moments)
    table.add_row("activations, estimated", *estimates)
    return table


def _cell(nbytes: int | None, size: int) -> str:
    return "" if nbytes is None else f"{nbytes / size:,.2f}"


def _facts(figures: MemoryFigures, size: int, unit: str) -> Iterator[tuple[str, str]]:
    def spell(nbytes: int) -> str:
        return f"{_cell(nbytes, size)} {unit}"

    def copied(nbytes: int, regions: list[str]) -> str:
        return f"{spell(nbytes)}: {spaced(', '.join(regions))}" if regions else "nothing"

    yield "peak", f"{spell(figures.peak_bytes)}, in {spaced(figures.peak_moment)}"
    ratio = f"the peak is {figures.peak_bytes / figures.need_bytes:.2f} times it"
    yield "largest need of a phase", f"{spell(figures.need_bytes)}; {ratio}"
    if figures.capacity_bytes is None:
        yield "device", "capacity not known: say --device-memory-gib N"
    else:
        verdict = f"fits{_tight(figures)}" if figures.fits else "DOES NOT FIT"
        yield "device", f"{spell(figures.capacity_bytes)}: {verdict}"
    cache = "what is left of the device; not counted above"
    if figures.kv_cache_bytes is not None:
        cache = f"{spell(figures.kv_cache_bytes)}, room for {figures.kv_cache_tokens:,} tokens"
    yield "KV cache", cache
    yield "host, of one worker", spell(figures.host_bytes)
    out, back = figures.copied_to_host_bytes, figures.copied_to_device_bytes
    yield "copied to the host, a step", copied(out, figures.copied_to_host)
    yield "copied to the device, a step", copied(back, figures.copied_to_device)


def _tight(figures: MemoryFigures) -> str:
    """Warn where activations may not fit any more."""
    most = max(
        moment.total_bytes + (moment.activations_estimate_bytes or 0) for moment in figures.moments
    )
    if figures.capacity_bytes is None or most <= figures.capacity_bytes:
        return ""
    return f", but with the estimated activations it takes {memory_text(most)}"
