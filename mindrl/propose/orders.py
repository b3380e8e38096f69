"""Orders of steps with layouts: on shared devices, and on every split of the devices.

Pure. The throughput of an order and a split is simulated. The training side of a split then gets
the fastest layout that fits, the rollout side the engine layout of the shared devices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from mindrl.errors import DeviceMemoryError
from mindrl.layouts.layout import RolloutLayout
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import ROLE_REGIONS
from mindrl.preflight.memory_plan import plan_without_kv_cache
from mindrl.preflight.rollout_memory import rollout_memory_plan
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.propose.candidates import (
    MOST_AT_A_TIME,
    Candidate,
    Settings,
    Task,
    candidate_config,
    legal_training,
    refusals,
    written_values,
)
from mindrl.propose.fitting import USABLE_SHARE, least_sizes, needs, prepared
from mindrl.propose.rates import rates_of
from mindrl.propose.search import Proposal
from mindrl.propose.step_orders import Arrangement, Load, Worth, ways, worth_of
from mindrl.rollout.planning import cache_sizes

_MOST_SPLITS = 8
_HELD = {*chain(*ROLE_REGIONS.values())}
_STEPS = 24
"""Number of simulated steps."""


@dataclass(frozen=True, kw_only=True)
class SideFit:
    """Bytes that the fullest device of a side holds."""

    peak_bytes: int
    """Includes estimated activations."""
    kv_sequences: int | None = None
    """Number of longest sequences that fit into a replica's KV cache."""


@dataclass(frozen=True, kw_only=True)
class PlacedOrder:
    """An order of steps on devices, and its layouts."""

    way: Arrangement
    worth: Worth
    task: Task
    """Task for the training devices, with the keys of the rollout devices."""
    candidate: Candidate
    settings: Settings
    training: SideFit
    rollout: SideFit
    """The same as `training` on shared devices."""

    @property
    def config(self) -> dict[str, Any]:
        """Keys of its configuration."""
        return written_values(self.task, self.candidate, self.settings)


def placed_orders(
    task: Task,
    shared: Proposal,
    load: Load,
    ages: Sequence[int],
    notify: Callable[[Arrangement], None],
) -> list[PlacedOrder]:
    """Return each order and staleness with its best placement, the most useful first.

    `shared` is the proposal for shared devices. Skips splits with a side that does not fit, and
    orders without a split that fits. `notify` is called with each arrangement before its simulation
    and before the layouts of its split are searched.
    """
    tp = shared.candidate.rollout.tp
    rates = replace(
        rates_of(task.model, task.device, replica_devices=tp),
        at_a_time=min(MOST_AT_A_TIME, shared.fit.kv_sequences),
    )
    tried: list[tuple[Worth, Arrangement]] = []
    for way in ways(task.devices, tp, ages):
        if not way.is_apart or (way.rollout // tp) % _every(task.devices // tp) == 0:
            notify(way)
            tried.append((worth_of(load, rates, way, steps=_STEPS), way))
    tried.sort(key=lambda each: -each[0].useful)
    sides: dict[tuple[int, int], _Layouts | None] = {}
    found: dict[tuple[str, int, bool], PlacedOrder] = {}
    for worth, way in tried:
        key, split = (way.order, way.max_staleness, way.is_apart), (way.training, way.rollout)
        if key in found:
            continue
        if not way.is_apart:
            found[key] = _on_shared(task, shared, way, worth)
            continue
        if split not in sides:
            notify(way)
            sides[split] = _laid_out(task, shared.candidate.rollout, *split)
        if (layouts := sides[split]) is not None:
            own = replace(task, devices=way.training, placement=placement_keys(way))
            found[key] = PlacedOrder(way=way, worth=worth, task=own, **layouts.parts)
    return sorted(found.values(), key=lambda each: -each.worth.useful)


def placement_keys(way: Arrangement) -> dict[str, Any]:
    """Return the configuration keys of an order of steps and its devices."""
    bound = {"rl_config.max_staleness": way.max_staleness}
    if way.order == "partial":
        flying = {"rl_config.groups_in_flight": 1.0 + way.max_staleness}
        return {"rl_config.partial_rollout": True} | flying | bound
    if not way.is_apart:
        return {}
    return {
        "rl_config.use_integrated_worker": False,
        "rl_config.rollout_resource.num_npus": way.rollout,
        "rl_config.step_order": way.order,
        **(bound if way.order == "asynchronous" else {}),
    }


@dataclass(frozen=True, kw_only=True)
class _Layouts:
    """Layouts of both sides of a split."""

    candidate: Candidate
    settings: Settings
    training: SideFit
    rollout: SideFit

    @property
    def parts(self) -> Mapping[str, Any]:
        names = ("candidate", "settings", "training", "rollout")
        return {name: getattr(self, name) for name in names}


def _every(replicas: int) -> int:
    """Return the number of replicas between two splits that are tried."""
    return -(-(replicas - 1) // _MOST_SPLITS) or 1


def _on_shared(task: Task, shared: Proposal, way: Arrangement, worth: Worth) -> PlacedOrder:
    fit = shared.fit
    side = SideFit(peak_bytes=fit.with_activations_bytes, kv_sequences=fit.kv_sequences)
    return PlacedOrder(
        way=way,
        worth=worth,
        task=replace(task, placement=placement_keys(way)),
        candidate=shared.candidate,
        settings=fit.settings,
        training=side,
        rollout=side,
    )


def _laid_out(task: Task, engine: RolloutLayout, training: int, rollout: int) -> _Layouts | None:
    """Lay out both sides of a split; None if one of them does not fit."""
    layout = replace(engine, dp=rollout // engine.tp)
    keys = placement_keys(
        Arrangement(order="in_turns", training=training, rollout=rollout, is_apart=True)
    )
    own = replace(task, devices=training, placement=keys)
    for candidate, settings, activations in _fastest(own, layout):
        if _least_bytes(task, candidate) > task.device.memory_bytes * USABLE_SHARE:
            continue
        if refusals(own, candidate, settings):
            continue
        models = unordered_shardings(candidate_config(own, candidate, settings))
        there = task.device.memory_bytes
        trains = plan_without_kv_cache(models, there, models.most_staging)
        need, _ = needs(trains, {settings: activations})[settings]
        if need > there * USABLE_SHARE:
            continue
        try:
            answers = rollout_memory_plan(models, there, models.most_staging)
        except DeviceMemoryError:
            # No layout of the other side changes this.
            return None
        room = _room(task, layout, answers)
        return _Layouts(
            candidate=candidate,
            settings=replace(settings, at_a_time=max(1, min(MOST_AT_A_TIME, room))),
            training=SideFit(peak_bytes=need),
            rollout=SideFit(peak_bytes=answers.peak_bytes, kv_sequences=room),
        )
    return None


def _fastest(
    task: Task, engine: RolloutLayout
) -> Iterator[tuple[Candidate, Settings, Mapping[Any, int]]]:
    """Yield training layouts and settings, the fastest first; nothing is offloaded."""
    # The training layouts do not depend on the rollout's devices.
    alone = replace(task, placement={})
    every = [
        (sum(seconds.values()), number, layout, settings, ready.activations[settings])
        for layout in legal_training(alone)
        for ready in [prepared(alone, layout)]
        for number, (settings, seconds) in enumerate(ready.seconds.items())
    ]
    every.sort(key=lambda each: each[:2])
    for _, _, layout, settings, activations in every:
        candidate = Candidate(training=layout, rollout=engine)
        yield candidate, replace(settings, offloads=frozenset()), activations


def _least_bytes(task: Task, candidate: Candidate) -> int:
    """Return a lower bound of the bytes on the fullest training device, with nothing offloaded."""
    regions = least_sizes(task, candidate).plan.regions
    return int(np.max(sum(sizes for each, sizes in regions.items() if each in _HELD)))


def _room(task: Task, layout: RolloutLayout, plan: MemoryPlan) -> int:
    one = cache_sizes(task.model, layout, "bfloat16").of_sequence(task.longest)
    assert plan.kv_cache_bytes is not None, "the device is known"
    return plan.kv_cache_bytes // one
