"""The derived numbers of a run: its ranks and groups, its batches, its memory, its reshard."""

from dataclasses import dataclass

from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.plan import MemoryPlan
from mindrl.preflight.memory_figures import MomentFigures, figures_of
from mindrl.preflight.run_plan import RunPlan
from mindrl.preflight.run_shardings import RunShardings
from mindrl.resharding.figures import PlanFigures
from mindrl.resharding.figures import figures_of as reshard_figures_of

Groups = list[list[int]]

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
class BatchFigures:
    """What a step does, counted."""

    prompts_per_step: int
    sequences_per_step: int
    rollout_sequences_per_replica: int
    """Of the replica with most."""
    rollout_sequences_at_a_time: int
    """Of one replica."""
    updates_per_step: int
    sequences_per_update: int
    micro_batches_of_replica: dict[str, int] | None
    """By the pass: of log-probs, values and scores in a step, and of one update. None where tokens
    cut them, whose number is not known before."""
    longest_sequence_tokens: int
    updates_in_all: int


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
    phases: list[MomentFigures]
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


def run_figures(name: str, plan: MemoryPlan, models: RunShardings) -> RunFigures:
    """Sum a run up.

    Args:
        name: Of the configuration.
        plan: Its memory.
        models: Of the plan.
    """
    config, memory = models.plan.config, figures_of(plan, models)
    return RunFigures(
        config=name,
        ranks=config.world_size,
        ranks_per_node=models.plan.topology.ranks_per_node,
        roles=_roles(models.plan),
        batch=_batch(config),
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
        reshard=reshard_figures_of(
            models.reshard, models.plan.topology, gbit_per_second=_GBIT_PER_SECOND
        ),
    )


def _roles(plan: RunPlan) -> dict[str, RoleFigures]:
    found = {
        str(role): _role(
            plan.config.model_path(role), layout, experts=plan.models[role].moe is not None
        )
        for role, layout in plan.layouts.items()
    }
    return {**found, "rollout": _rollout(plan.config)}


def _role(model: str, layout: TrainLayout, *, experts: bool) -> RoleFigures:
    names = ("tp", "cp", "pp", "dp")
    groups = {name: layout.dense_order.groups({name}) for name in names}
    sizes = {name: getattr(layout, name) for name in names}
    if layout.vpp > 1:
        sizes["vpp"] = layout.vpp
    if experts:
        sizes |= {"ep": layout.ep, "etp": layout.etp}
        groups |= {name: layout.experts_order.groups({name}) for name in ("ep", "etp")}
    per_replica = layout.ranks_per_replica
    return RoleFigures(
        model=model,
        sizes=sizes,
        ranks=layout.world_size,
        ranks_per_replica=per_replica,
        replicas=layout.dp,
        groups={name: each for name, each in groups.items() if len(each[0]) > 1},
    )


def _rollout(config: RunConfig) -> RoleFigures:
    """Return the engine's side: neighbouring ranks are one replica."""
    generate, ranks = config.generate_config, config.world_size
    tp, ep = generate.infer_tensor_parallel_size, generate.infer_expert_parallel_size
    replicas = [list(range(first, first + tp)) for first in range(0, ranks, tp)]
    sizes = {"tp": tp, "dp": len(replicas)} | ({"ep": ep} if ep > 1 else {})
    return RoleFigures(
        model=config.actor_config.load,
        sizes=sizes,
        ranks=ranks,
        ranks_per_replica=tp,
        replicas=len(replicas),
        groups={"tp": replicas} if tp > 1 else {},
    )


def _batch(config: RunConfig) -> BatchFigures:
    generate, rl = config.generate_config, config.rl_config
    of_replica = -(-config.sequences_per_step // config.rollout_layout.dp)
    return BatchFigures(
        prompts_per_step=config.megatron_training.global_batch_size,
        sequences_per_step=config.sequences_per_step,
        rollout_sequences_per_replica=of_replica,
        rollout_sequences_at_a_time=min(of_replica, generate.max_num_seqs),
        updates_per_step=config.updates_per_step,
        sequences_per_update=config.sequences_per_update,
        micro_batches_of_replica=None if rl.use_dynamic_bsz else _micro_batches(config),
        longest_sequence_tokens=rl.max_prompt_length + generate.sampling_config.max_tokens,
        updates_in_all=config.total_updates,
    )


def _micro_batches(config: RunConfig) -> dict[str, int]:
    """Count the micro-batches of one replica, pass by pass."""
    rl, actor = config.rl_config, config.actor_config.micro_batch_size
    step, update = config.sequences_per_step, config.sequences_per_update
    passes: tuple[tuple[str, Role, int, int], ...] = (
        ("reward", "reward", step, config.reward_forward_micro_batch_size),
        ("reference", "ref", step, rl.ref_forward_micro_batch_size or actor),
        ("forward", "actor", step, rl.actor_forward_micro_batch_size or actor),
        ("critic_forward", "critic", step, config.critic_forward_micro_batch_size),
        ("critic_update", "critic", update, config.critic_micro_batch_size),
        ("update", "actor", update, actor),
    )
    return {
        name: -(-sequences // config.layout(role).dp // size)
        for name, role, sequences, size in passes
        if role in config.roles
    }
