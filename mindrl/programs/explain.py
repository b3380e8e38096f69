"""The derived numbers of a run as JSON and tables: `mindrl plan explain ...`. Needs no torch."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mindrl.config.backends import ROLLOUT_BACKEND, TRAINING_BACKEND
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, ModelError
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.terminal import print_rows, say
from mindrl.observability.units import memory_text
from mindrl.platform.garbage import planning
from mindrl.preflight.derived_numbers import (
    batch_figures,
    order_text,
    placement_text,
    roles_text,
    spelled_sizes,
)
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.rollout_memory import rollout_memory_plan
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.programs.arguments import Program
from mindrl.programs.exits import counted
from mindrl.programs.memory import kv_cache_tokens, peak_moments, spaced
from mindrl.programs.plan_options import add_run_options, answer, chosen_shardings, device_bytes
from mindrl.resharding.figures import PlanFigures, figures_of

Groups = list[list[int]]

_EXAMPLE = """\
example:
  mindrl plan explain --config-name grpo_qwen25_7b

Only config.json of each model folder is read. If the folder is missing, the sizes shipped in
configs/models are used, with a note. docs/how-to/check-a-run.md derives the numbers of this run by
hand.
"""
_BATCH_TITLES = {
    "prompts_per_step": "prompts",
    "sequences_per_step": "sequences",
    "rollout_sequences_per_replica": "sequences of a rollout replica",
    "rollout_sequences_at_a_time": "sequences at a time",
    "updates_per_step": "updates",
    "sequences_per_update": "sequences of an update",
    "longest_sequence_tokens": "tokens of the longest sequence",
    "updates_in_all": "updates in total",
}
_MOST_RANKS_SPELLED = 16
_GBIT_PER_SECOND = 200.0
"""Bandwidth per rank and direction, the default of `plan reshard`."""


@dataclass(frozen=True, kw_only=True)
class RoleFigures:
    """Layout of a model."""

    model: str
    engine: str
    """Name of the engine in a layout string."""
    sizes: dict[str, int]
    """Parallel sizes by their short names."""
    ranks: int
    first_rank: int
    ranks_per_replica: int
    replicas: int
    groups: dict[str, Groups]
    """Ranks of each process group, by the parallel size that defines it; sizes of 1 are left out.
    Ranks of a separate rollout are numbered after the training ranks."""


@planning()
def _explain(options: argparse.Namespace) -> int:
    asked = chosen_shardings(options)
    config, models = asked.plan.config, asked.ordered
    plan = memory_plan(models, device_bytes(config, options))
    moved = None
    if config.rolls_out:
        moved = figures_of(models.reshard, models.topology, gbit_per_second=_GBIT_PER_SECOND)
    sides = [plan]
    if config.starts_engines:
        sides.append(rollout_memory_plan(models, device_bytes(config, options)))
    figures = {
        "config": options.config_name,
        **_figures(models, plan),
        "reshard": asdict(moved) if moved else None,
    }
    if options.rank is not None:
        figures["rank"] = {"rank": options.rank, "roles": _places(models.plan, options.rank)}
    if len(sides) > 1:
        # Figures of one replica, whose ranks count from 0.
        figures["rollout"] = _side_figures(models, sides[1])
    answer(options, config, figures, lambda: _print(options, models, sides, moved))
    return 0


def _places(plan: RunPlan, rank: int) -> dict[str, dict[str, int]]:
    """Return the coordinates of a rank in each role.

    Raises:
        ConfigError: The run has no such rank.
    """
    if not 0 <= rank < plan.config.devices:
        raise ConfigError(f"--rank={rank} must be one of 0 to {plan.config.devices - 1}")
    return plan.coordinates(rank)


def _figures(models: RunShardings, plan: MemoryPlan) -> dict[str, Any]:
    """Return the answer without the reshard; all sizes in bytes."""
    return {
        "ranks": models.plan.config.devices,
        "ranks_per_node": models.plan.topology.ranks_per_node,
        # By role; `rollout` is the engine's copy of the actor.
        "roles": {name: asdict(role) for name, role in _roles(models.plan).items()},
        "batch": batch_figures(models.plan.config),
        # Empty if rollout and training share devices in turns.
        "order_of_steps": order_text(models.plan.config),
        **_side_figures(models, plan),
    }


def _side_figures(models: RunShardings, plan: MemoryPlan) -> dict[str, Any]:
    """Return the memory on the devices of one side, in bytes."""
    return {
        "regions": {
            region.value: {"largest": int(sizes.max()), "all_ranks": int(sizes.sum())}
            for region, sizes in plan.regions.items()
        },
        "phases": [*map(asdict, peak_moments(plan, models))],
        "peak_bytes": plan.peak_bytes,
        "peak_rank": plan.peak_rank,
        "peak_moment": plan.peak_instant.label,
        "capacity_bytes": plan.capacity_bytes,
        "graph_bytes": plan.graphs,
        "kv_cache_tokens": kv_cache_tokens(plan, models),
        # The worker with the most host memory.
        "host_bytes": int(plan.host_bytes.max()),
    }


def _roles(plan: RunPlan) -> dict[str, RoleFigures]:
    found = {str(role): _role(plan, role) for role in plan.layouts}
    if not plan.config.rolls_out:
        return found
    rollout, first = plan.rollout, plan.first_rollout_rank
    sizes = {"tp": rollout.tp, "pp": rollout.pp, "ep": rollout.ep, "dp": rollout.dp}
    found["rollout"] = RoleFigures(
        model=plan.config.actor_config.load,
        engine=ROLLOUT_BACKEND,
        sizes={name: size for name, size in sizes.items() if size > 1 or name in ("tp", "dp")},
        ranks=rollout.world_size,
        first_rank=first,
        ranks_per_replica=rollout.tp * rollout.pp,
        replicas=rollout.dp,
        groups=_several({name: rollout.order.groups({name}) for name in ("tp", "pp")}, first),
    )
    return found


def _role(plan: RunPlan, role: Role) -> RoleFigures:
    layout, names = plan.layouts[role], ("tp", "cp", "pp", "dp")
    groups = {name: layout.dense_order.groups({name}) for name in names}
    sizes = {name: getattr(layout, name) for name in names}
    if layout.vpp > 1:
        sizes["vpp"] = layout.vpp
    if plan.models[role].moe:
        sizes |= {"ep": layout.ep, "etp": layout.etp}
        groups |= {name: layout.experts_order.groups({name}) for name in ("ep", "etp")}
    return RoleFigures(
        model=plan.config.model_path(role),
        engine=plan.config.training_backend(role),
        sizes=sizes,
        ranks=layout.world_size,
        first_rank=layout.first_rank,
        ranks_per_replica=layout.ranks_per_replica,
        replicas=layout.dp,
        groups=_several(groups, layout.first_rank),
    )


def _several(groups: Mapping[str, Groups], first: int) -> dict[str, Groups]:
    """Return the groups of several ranks, with ranks counted from 0 instead of from `first`."""
    return {
        name: [[first + rank for rank in group] for group in each]
        for name, each in groups.items()
        if len(each[0]) > 1
    }


def _print(
    options: argparse.Namespace,
    models: RunShardings,
    sides: Sequence[MemoryPlan],
    moved: PlanFigures | None,
) -> None:
    config, name = models.plan.config, options.config_name
    parts = {
        "ranks": _role_rows(_roles(models.plan)),
        "a step": _batch_rows(config),
    }
    if options.rank is not None:
        places = _places(models.plan, options.rank)
        parts[f"rank {options.rank}, by role"] = (
            (role, *(f"{name} {place}" for name, place in at.items()))
            for role, at in places.items()
        )
    for plan in sides:
        where = ", a replica of the rollout" if plan.side == "rollout" else ""
        parts |= {
            f"bytes of each region: fullest rank, all ranks{where}": _region_rows(models, plan),
            f"peak of each phase, and estimated activations{where}": _phase_rows(models, plan),
        }
    if moved and config.learns:
        parts[f"a reshard{' to one replica' * config.is_apart}"] = _reshard_rows(moved)
    machines = len(config.placement.shares)
    say(f"{name}: {config.devices} ranks on {counted(machines, 'machine')}")
    if config.is_apart:
        say(placement_text(config))
    if config.is_spread:
        say(f"devices of the roles: {roles_text(config)}")
    for title, rows in parts.items():
        say(f"\n{title}")
        print_rows((f"  {first}", *texts) for first, *texts in rows)
    say("\nGiB = 2^30 bytes; MiB likewise")


def _role_rows(roles: Mapping[str, RoleFigures]) -> Iterator[tuple[str, ...]]:
    for name, role in roles.items():
        replicas = f"{role.replicas} replicas x {role.ranks_per_replica} ranks"
        own = () if role.engine in (TRAINING_BACKEND, ROLLOUT_BACKEND) else (f"{role.engine}:",)
        yield name, " ".join((*own, spelled_sizes(role.sizes))), replicas
        for key, groups in role.groups.items():
            yield "", f"{key.upper()} groups", _spelled(groups)


def _batch_rows(config: RunConfig) -> Iterator[tuple[str, ...]]:
    if order := order_text(config):
        yield "order", order
    for name, number in batch_figures(config).items():
        if name in _BATCH_TITLES:
            yield _BATCH_TITLES[name], f"{number}"
        elif number is None:
            yield "micro-batches", "filled by tokens: their number depends on the responses"
        else:
            for phase, count in number.items():
                yield f"micro-batches of a replica, {spaced(phase)}", f"{count}"


def _region_rows(models: RunShardings, plan: MemoryPlan) -> Iterator[tuple[str, ...]]:
    for region, sizes in plan.regions.items():
        yield spaced(region.value), memory_text(int(sizes.max())), memory_text(int(sizes.sum()))
    if plan.side == "training":
        pass  # The other side reports it.
    elif (tokens := kv_cache_tokens(plan, models)) is None:
        yield "kv cache", "the remaining device memory: set --device-memory-gib N"
    else:
        yield "tokens in the kv cache", f"{tokens:,}"
    if plan.side != "rollout":
        yield "host, per worker", memory_text(int(plan.host_bytes.max()))


def _phase_rows(models: RunShardings, plan: MemoryPlan) -> Iterator[tuple[str, ...]]:
    for phase in peak_moments(plan, models):
        estimate = phase.activations_estimate_bytes
        activations = "" if estimate is None else f"+ {memory_text(estimate)}"
        yield spaced(phase.label), memory_text(phase.total_bytes), activations
    moment = spaced(plan.peak_instant.label)
    yield "peak", memory_text(plan.peak_bytes), f"in {moment}, rank {plan.peak_rank}"
    if plan.graphs:
        yield "graphs", memory_text(plan.graphs), "at all times, estimated"
    if plan.capacity_bytes is not None:
        yield "device", memory_text(plan.capacity_bytes)


def _reshard_rows(moved: PlanFigures) -> Iterator[tuple[str, ...]]:
    sizes = {
        "received, all ranks": moved.received_bytes.total,
        "maximum received by one rank": moved.received_bytes.max,
        "copied inside ranks": moved.copied_bytes.total,
        "within machines": moved.within_nodes_bytes,
        "across machines": moved.across_nodes_bytes,
        "maximum of messages in flight": moved.peak_staging_bytes.max,
    }
    yield from ((name, memory_text(nbytes)) for name, nbytes in sizes.items())
    yield "rounds", f"{moved.rounds}"


def _spelled(groups: Groups) -> str:
    """Return all groups of a small run as text, or the first group of a large one."""
    count = f"{len(groups)} of {len(groups[0])}"
    few = sum(map(len, groups)) <= _MOST_RANKS_SPELLED
    spelled = " | ".join(" ".join(map(str, group)) for group in (groups if few else groups[:1]))
    return f"{count}: {spelled}{'' if few else ' | ...'}"


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    parser.add_argument(
        "--rank", type=int, metavar="N", help="also print the coordinates of rank N in each role"
    )


PROGRAM = Program(
    about="Derive the numbers of a run from its configuration: ranks and groups of each "
    "role, sequences and micro-batches of a step, bytes of each region, the peak of each "
    "phase, and bytes of a reshard.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_explain,
    bad_input=(ModelError,),
)
