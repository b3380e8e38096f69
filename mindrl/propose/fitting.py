"""Choose the settings with which a candidate fits the devices, and the cost of its step.

Pure. Bytes come from the memory model of a run: exact, or, for a first selection, a lower bound
from the number of parameters of each pipeline stage.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from mindrl.config.backends import TRAINING_BACKEND
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.memory.plan import (
    MemoryPlan,
    RankBytes,
    RegionBytes,
    kv_cache_left,
    rollout_bytes,
    with_kv_cache,
)
from mindrl.memory.schedule import ROLE_REGIONS, Phase, Region
from mindrl.models.decoder import ELEMENT_BYTES
from mindrl.preflight.activation_estimates import activation_estimates
from mindrl.preflight.memory_plan import plan_without_kv_cache
from mindrl.preflight.run_shardings import RunShardings, unordered_plan
from mindrl.propose.candidates import (
    MICRO_BATCHES,
    PARTS,
    ROLLOUT_SHARE,
    Candidate,
    Part,
    Settings,
    Task,
    candidate_config,
    most_at_a_time,
)
from mindrl.propose.costs import (
    GIGA,
    LINK_SHARE,
    SecondsByStage,
    rollout_seconds,
    stage_parameters,
    training_seconds,
)
from mindrl.rollout.planning import CacheSizes, cache_sizes

USABLE_SHARE = 0.9
"""Share of a device for regions and estimated activations; libraries use the rest."""
_BYTES = ELEMENT_BYTES["bfloat16"]
_GRADIENT_BYTES, _OPTIMIZER_BYTES = 4, 12
_SHARED_BYTES = 4, 4, 8
"""float32 weights, gradients and optimizer of an engine that shards all of them."""
_HELD = 1.01
"""Maximum of a rank's parameters, relative to its share: norms are not cut."""
_REGIONS: Mapping[Part, tuple[Region, Region]] = {
    "optimizer": (Region.ACTOR_OPTIMIZER, Region.CRITIC_OPTIMIZER),
    "reference": (Region.REFERENCE_WEIGHTS, Region.TEACHER_WEIGHTS),
    "training weights": (Region.ACTOR_WEIGHTS, Region.CRITIC_WEIGHTS),
}
_ALWAYS = frozenset({Region.ACTOR_GRADIENTS, Region.CRITIC_GRADIENTS})
"""Not needed when they leave the device, so offloading makes no copy."""
_MOVABLE = {
    frozenset(parts): _ALWAYS.union(*(_REGIONS[part] for part in parts))
    for count in range(len(PARTS) + 1)
    for parts in combinations(PARTS, count)
}
"""Regions that leave the device for each set of offloaded parts, the smallest sets first."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Results for a training layout that do not depend on the rollout."""

    activations: Mapping[Settings, Mapping[Phase, int]]
    seconds: Mapping[Settings, SecondsByStage]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes of a candidate."""

    plan: MemoryPlan
    """Per rank, or per pipeline stage for a lower bound; without a KV cache."""
    cache: CacheSizes
    """Bytes of sequences in a rank's KV cache."""
    reshard_seconds: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A candidate that fits, with the settings that make its step shortest."""

    settings: Settings
    seconds: SecondsByStage
    peak_bytes: int
    """Regions only, on the fullest device."""
    peak_moment: str
    with_activations_bytes: int
    """Maximum of regions plus estimated activations."""
    host_bytes: int
    """Host bytes of the node with most."""
    kv_sequences: int
    """Number of longest sequences that fit into the KV cache."""

    @property
    def step_seconds(self) -> float:
        """Seconds of the whole step."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """How much memory a candidate lacks."""

    moment: str
    """Moment at which a device lacks memory; `host` if a node does."""
    need_bytes: int
    available_bytes: int

    @property
    def excess(self) -> float:
        """Needed bytes relative to available bytes."""
        return self.need_bytes / self.available_bytes


def prepared(task: Task, layout: TrainLayout) -> Prepared:
    """Compute what all candidates with a training layout share."""
    most = max(1, task.sequences // layout.dp)
    sizes = [size for size in MICRO_BATCHES if size <= most]
    settings = [
        Settings(micro_batch_size=size, recomputes=recomputes)
        for size, recomputes in product(sizes, (False, True))
    ]
    return Prepared(
        activations={each: activations_of(task, layout, each) for each in settings},
        seconds={each: training_seconds(task, layout, each) for each in settings},
    )


def activations_of(task: Task, layout: TrainLayout, settings: Settings) -> dict[Phase, int]:
    """Estimate the bytes of activations, which depend only on the training layout."""
    candidate = Candidate(training=layout, rollout=RolloutLayout(dp=task.devices))
    config = candidate_config(task, candidate, settings)
    return activation_estimates(unordered_plan(config, task.models))


def least_sizes(task: Task, candidate: Candidate) -> Sizes:
    """Return lower bounds of a candidate's bytes."""
    layout, rollout = candidate.training, candidate.rollout
    sizes = task.parameters
    whole = sum(sizes.dense) + sum(sizes.experts) + sizes.embedding + sizes.head
    parts = _least_parts(task, layout)
    regions = dict(zip(ROLE_REGIONS["actor"], parts, strict=True))
    (of_frozen,), weights = ROLE_REGIONS[task.frozen], regions[Region.ACTOR_WEIGHTS]
    if task.teacher is not None:
        own = candidate_config(task, candidate, Settings()).layout("teacher")
        weights = _least_parts(task.of_frozen, own)[0]
    regions[of_frozen] = weights
    if task.has_critic:
        without_head = np.ones(layout.pp)
        last = sum(stage_parameters(task, layout)[-1])
        without_head[-1] -= sizes.head / layout.tp / last
        of_critic = (parts * without_head).astype(np.int64)
        regions |= dict(zip(ROLE_REGIONS["critic"], of_critic, strict=True))
    regions[Region.ROLLOUT_WEIGHTS] = np.full(layout.pp, whole * _BYTES // rollout.tp)
    regions[Region.STAGING] = np.zeros(layout.pp, dtype=np.int64)
    plan = MemoryPlan(
        capacity_bytes=task.device.memory_bytes,
        roles=tuple(task.models),
        reads_actor=task.reads_actor,
        movable=frozenset(),
        regions=regions,
        host_rounding=np.zeros(layout.pp, dtype=np.int64),
    )
    return Sizes(
        plan=plan,
        cache=cache_sizes(task.model, rollout, "bfloat16"),
        reshard_seconds=least_reshard_seconds(task, regions),
    )


def _least_parts(task: Task, layout: TrainLayout) -> NDArray[np.int64]:
    """Return lower bounds of the bytes of weights, gradients and optimizer, [3, stages]."""
    dense, experts = np.array(stage_parameters(task, layout)).T
    shared = dense / (layout.dp * layout.cp) + experts / layout.expert_dp
    if task.engine != TRAINING_BACKEND:
        return np.outer(_SHARED_BYTES, shared).astype(np.int64)
    held = (dense + experts) * np.array([[_BYTES], [_GRADIENT_BYTES]])
    return np.stack([*held, shared * _OPTIMIZER_BYTES]).astype(np.int64)


def exact_sizes(task: Task, models: RunShardings, staging: RankBytes) -> Sizes:
    """Return the exact bytes of all ranks; the reshard time is a lower bound."""
    plan = plan_without_kv_cache(models, task.device.memory_bytes, staging)
    return Sizes(
        plan=plan,
        cache=models.plan.cache_sizes,
        reshard_seconds=least_reshard_seconds(task, plan.regions),
    )


def least_reshard_seconds(task: Task, regions: RegionBytes) -> float:
    """Return the minimum time in which a rank receives weights that it lacks, from its own node."""
    needs = int(regions[Region.ROLLOUT_WEIGHTS].max())
    least = max(0.0, needs - int(regions[Region.ACTOR_WEIGHTS].min()) * _HELD)
    return least / (task.device.node_gbps * GIGA * LINK_SHARE)


def best_fit(task: Task, ready: Prepared, rollout: RolloutLayout, sizes: Sizes) -> Fit | None:
    """Return the settings that fit and cost least; None if none fit."""
    *fewer, every = _MOVABLE
    last = _fit(task, ready, rollout, sizes, every)
    # Offloading fewer parts never needs less device memory.
    if isinstance(last, Misfit) and last.moment != "host":
        return None
    found = [_fit(task, ready, rollout, sizes, offloads) for offloads in fewer]
    fits = [each for each in (*found, last) if isinstance(each, Fit)]
    return min(fits, key=lambda fit: fit.step_seconds, default=None)


def nearest_misfit(task: Task, ready: Prepared, rollout: RolloutLayout, sizes: Sizes) -> Misfit:
    """Return the misfit with the smallest excess, if nothing fits."""
    found = [_fit(task, ready, rollout, sizes, offloads) for offloads in _MOVABLE]
    return min((each for each in found if isinstance(each, Misfit)), key=lambda each: each.excess)


def _fit(
    task: Task, ready: Prepared, rollout: RolloutLayout, sizes: Sizes, offloads: frozenset[Part]
) -> Fit | Misfit:
    """Return the cheapest settings for one choice of offloaded parts, or the misfit."""
    plan, device_bytes = replace(sizes.plan, movable=_MOVABLE[offloads]), task.device.memory_bytes
    usable, share = int(device_bytes * USABLE_SHARE), int(device_bytes * ROLLOUT_SHARE)
    others, least = rollout_bytes(plan), sizes.cache.smallest(task.longest)
    left, host = kv_cache_left(share, others), _host_bytes(task, plan)
    needed = needs(plan, ready.activations)
    fitting = [each for each, (need, _) in needed.items() if need <= usable]
    if left < least or host > task.host_bytes or not fitting:
        need, moment = min(needed.values())
        wants = (
            Misfit(moment="rollout", need_bytes=others + least, available_bytes=share),
            Misfit(moment="host", need_bytes=host, available_bytes=task.host_bytes),
            Misfit(moment=moment, need_bytes=need, available_bytes=usable),
        )
        return max(wants, key=lambda each: each.excess)
    settings = min(fitting, key=lambda each: sum(ready.seconds[each].values()))
    full, room = with_kv_cache(plan, left), left // sizes.cache.of_sequence(task.longest)
    at_a_time = most_at_a_time(task, rollout, room)
    out, back = plan.copied_bytes
    weights = int(plan.regions[Region.ROLLOUT_WEIGHTS].max())
    return Fit(
        settings=replace(settings, offloads=offloads, at_a_time=at_a_time),
        seconds={
            **rollout_seconds(task, rollout, weights, at_a_time, sizes.cache.per_token),
            **ready.seconds[settings],
            "copies": (int(out.max()) + int(back.max())) / (task.device.host_gbps * GIGA),
            "reshard": sizes.reshard_seconds,
        },
        peak_bytes=full.peak_bytes,
        peak_moment=full.peak_instant.label,
        with_activations_bytes=max(needed[settings][0], full.peak_bytes),
        host_bytes=host,
        kv_sequences=room,
    )


def _host_bytes(task: Task, plan: MemoryPlan) -> int:
    """Return the host bytes of the fullest node; for a bound by stages, of a mean node."""
    if plan.world_size != task.devices:
        return int((plan.host_bytes + plan.pictures.host).mean() * task.ranks_per_node)
    return plan.host_bytes_of_node(task.ranks_per_node)


def needs(
    plan: MemoryPlan, activations: Mapping[Settings, Mapping[Phase, int]]
) -> dict[Settings, tuple[int, str]]:
    """Return the maximum of regions and activations without the KV cache, and its moment."""
    most = max((total, at.label) for at, total in plan.moments)
    working = [(at.phase, total) for at, total in plan.moments if at.move is None]
    return {
        settings: max(
            most,
            *((total + plan.working_bytes(at, of.get(at, 0)), at.value) for at, total in working),
        )
        for settings, of in activations.items()
    }
