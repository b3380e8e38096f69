"""The numbers of a run as a sub-command: `python cli/plan.py explain ...`. Needs no torch."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mindrl.observability.units import memory_text
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_figures import BatchFigures, Groups, RunFigures, run_figures
from mindrl.preflight.run_shardings import planned_shardings
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.programs.plan_options import (
    add_run_options,
    device_bytes,
    planned_config,
    print_answer,
)

_EXAMPLE = """\
example:
  python cli/plan.py explain --config-name grpo_qwen25_7b

Of each model folder only config.json is read; where the folder is not here, the shipped sizes of
configs/models are taken and named. docs/how-to/check-a-run.md derives the numbers of
this run by hand.
"""
_MOST_RANKS_SPELLED = 16


def add_explain_parser(plans: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the sub-command."""
    explain = plans.add_parser(
        "explain",
        help="the derived numbers of a run: ranks, groups, batches, memory, reshard",
        description="Derive the numbers of a run from its configuration: ranks and groups of each "
        "role, sequences and micro-batches of a step, bytes of each region, the peak of each "
        "phase, and what a reshard moves.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_run_options(explain)
    explain.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    config = planned_config(options)
    models = planned_shardings(config)
    plan = memory_plan(models, device_bytes(config, options))
    figures = run_figures(options.config_name, plan, models)
    if options.json:
        print_answer(config, asdict(figures))
    else:
        note_shipped_sizes(config)
        _print(figures, Console())
    return 0


def _print(figures: RunFigures, console: Console) -> None:
    parts = {
        "ranks": _role_rows(figures),
        "a step": _batch_rows(figures.batch),
        "bytes of each region: on the fullest rank, on all": _region_rows(figures),
        "peak of each phase, and activations by estimate": _phase_rows(figures),
        "a reshard": _reshard_rows(figures),
    }
    nodes = -(-figures.ranks // figures.ranks_per_node)
    machines = "1 machine" if nodes == 1 else f"{nodes} machines"
    console.print(f"{figures.config}: {figures.ranks} ranks on {machines}", highlight=False)
    for title, rows in parts.items():
        console.print(f"\n{title}", highlight=False)
        table = Table(show_header=False, box=None, pad_edge=False)
        for row in rows:
            table.add_row("  " + row[0], *map(escape, row[1:]))
        console.print(table)
    console.print("\nGiB = 2^30 bytes; MiB likewise", highlight=False)


def _role_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    for name, role in figures.roles.items():
        sizes = ", ".join(
            f"{key.upper()} {size}"
            for key, size in role.sizes.items()
            if size > 1 or key in ("tp", "dp")
        )
        yield name, sizes, f"{role.replicas} replicas x {role.ranks_per_replica} ranks"
        for key, groups in role.groups.items():
            yield "", f"{key.upper()} groups", _spelled(groups)


def _batch_rows(batch: BatchFigures) -> Iterator[tuple[str, ...]]:
    yield "prompts", f"{batch.prompts_per_step}"
    yield "sequences", f"{batch.sequences_per_step}"
    yield "sequences of a rollout replica", f"{batch.rollout_sequences_per_replica}"
    yield "of them at a time, at most", f"{batch.rollout_sequences_at_a_time}"
    yield "updates", f"{batch.updates_per_step}"
    yield "sequences of an update", f"{batch.sequences_per_update}"
    for name, count in (batch.micro_batches_of_replica or {}).items():
        yield f"micro-batches of a replica, {name.replace('_', ' ')}", f"{count}"
    if batch.micro_batches_of_replica is None:
        yield "micro-batches", "cut by tokens: their number follows from the responses"
    yield "tokens of the longest sequence", f"{batch.longest_sequence_tokens}"
    yield "updates in all", f"{batch.updates_in_all}"


def _region_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    for name, region in figures.regions.items():
        sizes = memory_text(region.largest), memory_text(region.all_ranks)
        yield name.replace("_", " "), *sizes
    if "kv_cache" not in figures.regions:
        yield "kv cache", "what is left of the device: say --device-memory-gib N"
    elif figures.kv_cache_tokens is not None:
        yield "tokens in the kv cache", f"{figures.kv_cache_tokens:,}"
    yield "host, of one worker", memory_text(figures.host_bytes)


def _phase_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    for phase in figures.phases:
        estimate = phase.activations_estimate_bytes
        activations = "" if estimate is None else f"+ {memory_text(estimate)}"
        yield phase.label.replace("_", " "), memory_text(phase.total_bytes), activations
    peak = memory_text(figures.peak_bytes)
    yield "peak", peak, f"in {figures.peak_moment.replace('_', ' ')}, rank {figures.peak_rank}"
    if figures.capacity_bytes is not None:
        yield "device", memory_text(figures.capacity_bytes)


def _reshard_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    moved = figures.reshard
    yield "received, all ranks", memory_text(moved.received_bytes.total)
    yield "received by one rank, at most", memory_text(moved.received_bytes.max)
    yield "copied inside ranks", memory_text(moved.copied_bytes.total)
    yield "within machines", memory_text(moved.within_nodes_bytes)
    yield "across machines", memory_text(moved.across_nodes_bytes)
    yield "messages in flight, at most", memory_text(moved.peak_staging_bytes.max)
    yield "rounds", f"{moved.rounds}"


def _spelled(groups: Groups) -> str:
    """Spell the groups of a small run out, of a large one the first."""
    count = f"{len(groups)} of {len(groups[0])}"
    few = sum(map(len, groups)) <= _MOST_RANKS_SPELLED
    spelled = " | ".join(" ".join(map(str, group)) for group in (groups if few else groups[:1]))
    return f"{count}: {spelled}{'' if few else ' | ...'}"
