"""The memory of a run's steps, predicted from its configuration. Needs no torch."""

from collections.abc import Iterator

import numpy as np

from mindrl.config.finding import Finding, broken
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError, DeviceMemoryError
from mindrl.memory.activations import Passes, forward_estimate, logits_estimate, update_estimate
from mindrl.memory.plan import MemoryPlan, RankBytes, kv_cache_left, rollout_bytes, with_kv_cache
from mindrl.memory.schedule import PHASE_ROLES, ROLE_REGIONS, UPDATES, Phase, Region
from mindrl.observability.units import MIB, mib_text
from mindrl.platform.host_memory import rounded
from mindrl.preflight.run_shardings import RunPlan, RunShardings, role_head
from mindrl.training.planning import trained_bytes

_STORAGES_PER_TENSOR = 4
"""At most: weight, main weight, two moments; each has a place of its own on the host."""


def memory_plan(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict the memory of a run's steps.

    Where the capacity of a device is not known, `generate_config.kv_cache_mib` alone can say how
    large the KV cache is.

    Raises:
        ConfigError: `generate_config.kv_cache_mib` does not hold one sequence.
        DeviceMemoryError: What the device has left for the KV cache does not hold one.
    """
    return with_own_kv_cache(models, plan_without_kv_cache(models, capacity_bytes, staging))


def with_own_kv_cache(models: RunShardings, plan: MemoryPlan) -> MemoryPlan:
    """Return a plan with the KV cache that a run takes; as it is where nothing says its size.

    Raises:
        ConfigError: As `memory_plan`.
        DeviceMemoryError: As `memory_plan`.
    """
    config, per_token = models.plan.config, models.plan.kv_bytes_per_token
    for finding in kv_cache_findings(config, per_token):
        raise ConfigError(str(finding))
    generate = config.generate_config
    if generate.kv_cache_mib is not None:
        return with_kv_cache(plan, generate.kv_cache_mib * MIB)
    if plan.capacity_bytes is None:
        return plan
    share = int(plan.capacity_bytes * generate.gpu_memory_utilization)
    others = rollout_bytes(plan)
    left = kv_cache_left(share, others)
    least, sequence = one_sequence(config, per_token)
    if left < least:
        raise DeviceMemoryError(
            f"generate_config.gpu_memory_utilization={generate.gpu_memory_utilization:g} of "
            f"{mib_text(plan.capacity_bytes)} is {mib_text(share)}; what else lies on "
            f"the device during rollout takes {mib_text(others)}, which leaves "
            f"{left / MIB:,.0f} MiB for the KV cache; {sequence}"
        )
    return with_kv_cache(plan, left)


def kv_cache_findings(config: RunConfig, per_token: int) -> Iterator[Finding]:
    """Say so where a KV cache of a given size does not hold one sequence."""
    mib, (least, sequence) = config.generate_config.kv_cache_mib, one_sequence(config, per_token)
    if mib is not None and mib * MIB < least:
        yield broken("generate_config.kv_cache_mib", mib, f": {sequence}", -(-least // MIB))


def one_sequence(config: RunConfig, per_token: int) -> tuple[int, str]:
    """Return the bytes of the smallest KV cache, that of one whole sequence, and words for it."""
    length = config.generate_config.max_model_len
    least = per_token * length
    return least, (
        f"one sequence of generate_config.max_model_len={length} tokens takes "
        f"{mib_text(least)} ({per_token:,} bytes a token)"
    )


def plan_without_kv_cache(
    models: RunShardings, capacity_bytes: int | None, staging: RankBytes | None = None
) -> MemoryPlan:
    """Predict all but the KV cache; without `staging` the reshard is planned, which says it."""
    config = models.plan.config
    shares = config.megatron_training.use_distributed_optimizer
    messages = models.reshard.peak_staging if staging is None else staging
    keys = offload_keys(config).items()
    return MemoryPlan(
        capacity_bytes=capacity_bytes,
        roles=config.roles,
        movable=frozenset(region for region, key in keys if config.value_of(key)),
        regions=region_bytes(models, messages, distributed_optimizer=shares),
        host_rounding=_host_rounding(models),
    )


def too_small(plan: MemoryPlan) -> str:
    """Say by how much a device is too small, and when."""
    assert plan.capacity_bytes is not None, "nothing is too small where nothing is known"
    return (
        f"rl_config.check_memory=true: the run is predicted to need {mib_text(plan.peak_bytes)} "
        f"of device memory on rank {plan.peak_rank} at '{plan.peak_instant.label}', and the "
        f"device has {mib_text(plan.capacity_bytes)}; python cli/plan.py memory shows each "
        "phase and which switch would help"
    )


def region_bytes(
    models: RunShardings, staging: RankBytes, *, distributed_optimizer: bool
) -> dict[Region, RankBytes]:
    """Return the bytes of each region on each rank, the KV cache aside.

    `staging` is that of messages in flight; with `distributed_optimizer` replicas share its states.
    """
    found: dict[Region, RankBytes] = {
        Region.ROLLOUT_WEIGHTS: np.array(models.rollout.held_bytes()),
        Region.STAGING: staging,
    }
    for role, side in models.training.items():
        regions = ROLE_REGIONS[role]
        if len(regions) == 1:
            found |= dict.fromkeys(regions, np.array(side.held_bytes()))
            continue
        layout = models.plan.layouts[role]
        ranks = trained_bytes(side, layout, distributed_optimizer=distributed_optimizer)
        parts = [(rank.weights, rank.gradients, rank.optimizer) for rank in ranks]
        found |= dict(zip(regions, np.array(parts).T, strict=True))
    return found


def offload_keys(config: RunConfig) -> dict[Region, str]:
    """Return the key of each region that a run has and that leaves only if asked to."""
    keys: dict[Region, str] = {}
    for role, regions in ROLE_REGIONS.items():
        section = "generate_config" if role == "actor" else f"{role}_config"
        parts = ("train_param", "train_grad", "train_optimizer") if len(regions) > 1 else ("param",)
        if role in config.roles:
            names = zip(regions, parts, strict=True)
            keys |= {region: f"{section}.offload_{part}" for region, part in names}
    return keys


def activation_estimates(plan: RunPlan) -> dict[Phase, int]:
    """Estimate the bytes that each phase of the training side needs besides its regions.

    For a micro-batch of the longest sequences on the rank that needs most. What the rollout
    engine needs besides weights and KV cache is not estimated.
    """
    return {
        phase: _activations(plan, phase, role)
        for phase, role in PHASE_ROLES.items()
        if role in plan.config.roles
    }


def _activations(plan: RunPlan, phase: Phase, role: Role) -> int:
    config, model, layout = plan.config, plan.models[role], plan.layouts[role]
    training, cut = config.megatron_training, config.micro_batching(role, learns=phase in UPDATES)
    longest = config.rl_config.max_prompt_length + config.generate_config.sampling_config.max_tokens
    passes = Passes(
        layout=layout,
        dtype=plan.train_dtype,
        sequence_parallel=layout.tp > 1 and (training.sequence_parallel or model.moe is not None),
        tokens=cut.tokens or cut.sequences * min(training.seq_length, longest),
        learning=config.learning(role),
    )
    found = (update_estimate if phase in UPDATES else forward_estimate)(model, passes)
    if role_head(role) == "value":
        return found
    return found + logits_estimate(model, layout.tp, config.actor_config.logprob_chunk_tokens)


def _host_rounding(models: RunShardings) -> RankBytes:
    """Return what rounding adds at most to what each rank keeps on the host."""
    tensors = [
        [
            sum(len(side.shards[side.twins.get(shard, shard)]) for shard in held)
            for held in side.held_by
        ]
        for side in models.training.values()
    ]
    counts: RankBytes = np.array(tensors, dtype=np.int64).sum(axis=0)
    return counts * _STORAGES_PER_TENSOR * rounded(1)
