"""The numbers of a run: `python cli/plan.py explain ...`, its figures and its tables.

Needs no torch.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mindrl.layouts.layout import TrainLayout
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.units import memory_text
from mindrl.preflight.derived_numbers import BatchFigures, batch_figures, spelled_sizes
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.programs.exits import say
from mindrl.programs.memory import PlannedSnapshot, memory_figures, spaced
from mindrl.programs.plan_options import (
    add_run_options,
    asked_shardings,
    device_bytes,
    print_answer,
)
from mindrl.resharding.figures import PlanFigures, figures_of

Groups = list[list[int]]

_EXAMPLE = """\
example:
  python cli/plan.py explain --config-name grpo_qwen25_7b

Of each model folder only config.json is read; where the folder is not here, the shipped sizes of
configs/models are taken and named. docs/how-to/check-a-run.md derives the numbers of
this run by hand.
"""
_MOST_RANKS_SPELLED = 16
_GBIT_PER_SECOND = 200.0
"""Of a rank each way, as `plan reshard` takes by default."""


@dataclass(frozen=True, kw_only=True)
class RoleFigures:
    """Where a model lies."""

    model: str
    sizes: dict[str, int]
    """Parallel sizes by their short names."""
    ranks: int
    ranks_per_replica: int
    replicas: int
    groups: dict[str, Groups]
    """Ranks that work together, by the size that cuts between them; sizes of 1 are left out."""


@dataclass(frozen=True, kw_only=True)
class RegionFigures:
    """Bytes of one region."""

    largest: int
    """On the rank that has most of it."""
    all_ranks: int


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The whole answer; all sizes in bytes."""

    config: str
    ranks: int
    ranks_per_node: int
    roles: dict[str, RoleFigures]
    """By the role; `rollout` is the engine's copy of the actor."""
    batch: BatchFigures
    regions: dict[str, RegionFigures]
    phases: list[PlannedSnapshot]
    """What lies on the fullest device during each phase and during the reshard."""
    peak_bytes: int
    peak_rank: int
    peak_moment: str
    capacity_bytes: int | None
    kv_cache_tokens: int | None
    host_bytes: int
    """Of the worker that keeps most on the host."""
    reshard: PlanFigures
    """In the order of the ranks that `generate_config.rank_map` gives."""


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
    asked = asked_shardings(options)
    config, models = asked.plan.config, asked.ordered
    plan = memory_plan(models, device_bytes(config, options))
    figures = _figures(options.config_name, plan, models)
    if options.json:
        print_answer(config, asdict(figures))
    else:
        note_shipped_sizes(config)
        _print(figures)
    return 0


def _figures(name: str, plan: MemoryPlan, models: RunShardings) -> RunFigures:
    config, memory = models.plan.config, memory_figures(plan, models)
    return RunFigures(
        config=name,
        ranks=config.world_size,
        ranks_per_node=models.plan.topology.ranks_per_node,
        roles=_roles(models.plan),
        batch=batch_figures(config),
        regions={
            region.value: RegionFigures(largest=int(sizes.max()), all_ranks=int(sizes.sum()))
            for region, sizes in plan.regions.items()
        },
        phases=memory.moments,
        peak_bytes=memory.peak_bytes,
        peak_rank=memory.peak_rank,
        peak_moment=memory.peak_moment,
        capacity_bytes=memory.capacity_bytes,
        kv_cache_tokens=memory.kv_cache_tokens,
        host_bytes=memory.host_bytes,
        reshard=figures_of(models.reshard, models.plan.topology, gbit_per_second=_GBIT_PER_SECOND),
    )


def _roles(plan: RunPlan) -> dict[str, RoleFigures]:
    found = {
        str(role): _role(
            plan.config.model_path(role), layout, experts=plan.models[role].moe is not None
        )
        for role, layout in plan.layouts.items()
    }
    # Neighbouring ranks of the engine are one replica.
    rollout, ranks = plan.rollout, plan.config.world_size
    replicas = [[*range(first, first + rollout.tp)] for first in range(0, ranks, rollout.tp)]
    sizes = {"tp": rollout.tp, "dp": rollout.dp}
    found["rollout"] = RoleFigures(
        model=plan.config.actor_config.load,
        sizes=sizes | ({"ep": rollout.ep} if rollout.ep > 1 else {}),
        ranks=ranks,
        ranks_per_replica=rollout.tp,
        replicas=rollout.dp,
        groups={"tp": replicas} if rollout.tp > 1 else {},
    )
    return found


def _role(model: str, layout: TrainLayout, *, experts: bool) -> RoleFigures:
    names = ("tp", "cp", "pp", "dp")
    groups = {name: layout.dense_order.groups({name}) for name in names}
    sizes = {name: getattr(layout, name) for name in names}
    if layout.vpp > 1:
        sizes["vpp"] = layout.vpp
    if experts:
        sizes |= {"ep": layout.ep, "etp": layout.etp}
        groups |= {name: layout.experts_order.groups({name}) for name in ("ep", "etp")}
    return RoleFigures(
        model=model,
        sizes=sizes,
        ranks=layout.world_size,
        ranks_per_replica=layout.ranks_per_replica,
        replicas=layout.dp,
        groups={name: each for name, each in groups.items() if len(each[0]) > 1},
    )


def _print(figures: RunFigures) -> None:
    parts = {
        "ranks": _role_rows(figures),
        "a step": _batch_rows(figures.batch),
        "bytes of each region: on the fullest rank, on all": _region_rows(figures),
        "peak of each phase, and activations by estimate": _phase_rows(figures),
        "a reshard": _reshard_rows(figures),
    }
    nodes = -(-figures.ranks // figures.ranks_per_node)
    machines = "1 machine" if nodes == 1 else f"{nodes} machines"
    say(f"{figures.config}: {figures.ranks} ranks on {machines}")
    for title, rows in parts.items():
        say(f"\n{title}")
        table = Table(show_header=False, box=None, pad_edge=False)
        for row in rows:
            table.add_row("  " + row[0], *map(escape, row[1:]))
        Console().print(table)
    say("\nGiB = 2^30 bytes; MiB likewise")


def _role_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    for name, role in figures.roles.items():
        replicas = f"{role.replicas} replicas x {role.ranks_per_replica} ranks"
        yield name, spelled_sizes(role.sizes), replicas
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
        yield f"micro-batches of a replica, {spaced(name)}", f"{count}"
    if batch.micro_batches_of_replica is None:
        yield "micro-batches", "cut by tokens: their number follows from the responses"
    yield "tokens of the longest sequence", f"{batch.longest_sequence_tokens}"
    yield "updates in all", f"{batch.updates_in_all}"


def _region_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    for name, region in figures.regions.items():
        yield spaced(name), memory_text(region.largest), memory_text(region.all_ranks)
    if "kv_cache" not in figures.regions:
        yield "kv cache", "what is left of the device: say --device-memory-gib N"
    elif figures.kv_cache_tokens is not None:
        yield "tokens in the kv cache", f"{figures.kv_cache_tokens:,}"
    yield "host, of one worker", memory_text(figures.host_bytes)


def _phase_rows(figures: RunFigures) -> Iterator[tuple[str, ...]]:
    for phase in figures.phases:
        estimate = phase.activations_estimate_bytes
        activations = "" if estimate is None else f"+ {memory_text(estimate)}"
        yield spaced(phase.label), memory_text(phase.total_bytes), activations
    peak = memory_text(figures.peak_bytes)
    yield "peak", peak, f"in {spaced(figures.peak_moment)}, rank {figures.peak_rank}"
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
