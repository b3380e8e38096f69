"""Metrics: numbers under slash-separated names such as `update/policy_loss`."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeVar

Metrics = dict[str, float]
ValueT = TypeVar("ValueT")

_OF_CARRYING_OUT = (
    "seconds/",
    "bytes/",
    "memory/",
    "throughput/",
    "turns/environment_seconds",
    "turns/idle_seconds",
)

_OF_ALL_UPDATES = frozenset(
    ("grad_norm", "lr", "skipped", "moe_aux_loss", "differing_routes", "without_routes")
)
"""Metrics of an optimizer step that do not depend on the weights of its tokens."""

_EQUALLY_SLOW = 0.01
"""Idle share up to which a worker counts as slow as the slowest, so that one number stands for all
ranks of a replica, which end together."""


def computed(metrics: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return the metrics without times, bytes, memory and throughput, which vary between runs."""
    return {name: value for name, value in metrics.items() if not name.startswith(_OF_CARRYING_OUT)}


def mean_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Return the mean of each name over the parts that have it.

    A NaN or inf in a part makes the mean NaN or inf.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    values = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}


def without_tokens(update: Metrics) -> Metrics:
    """Return the metrics of an optimizer step without those that are means over its tokens."""
    return {name: value for name, value in update.items() if name in _OF_ALL_UPDATES}


def update_metrics(model: str, updates: Sequence[Metrics]) -> Metrics:
    """Average the optimizer steps of a step, as `<model>/<name>`, and count the skipped ones.

    `<model>/skipped` is that count. Only steps that were taken enter the means: if all were
    skipped, only the count is returned.
    """
    taken = [update for update in updates if not update["skipped"]]
    means = mean_metrics(taken)
    means["skipped"] = float(len(updates) - len(taken))
    return {f"{model}/{name}": value for name, value in means.items()}


def joined_metrics(training: Sequence[Metrics], rollout: Sequence[Metrics]) -> Metrics:
    """Return the metrics of a step from those of its workers; names do not depend on their number.

    Seconds are those of the slowest worker, bytes are summed. A worker is idle while the slowest
    still generates. Ranks that only roll out are numbered after those that train.
    """
    workers = [*training, *rollout]
    metrics: Metrics = {}
    for name in {name: None for worker in workers for name in worker}:
        values = {rank: worker[name] for rank, worker in enumerate(workers) if name in worker}
        kind, _, what = name.partition("/")
        if kind == "memory":
            trained = {rank: value for rank, value in values.items() if rank < len(training)}
            metrics |= _memory("memory/", what, trained)
            metrics |= _memory("memory/rollout_", what, dict(values.items() - trained.items()))
        elif kind == "nonfinite":
            metrics |= {f"nonfinite/worker_{rank}/{what}": each for rank, each in values.items()}
        else:
            metrics[name] = (max if kind == "seconds" else sum)(values.values())
        if name == "seconds/generate" and metrics[name]:
            idle = {rank: 1 - value / metrics[name] for rank, value in values.items()}
            worst = min(rank for rank, value in idle.items() if value <= _EQUALLY_SLOW)
            metrics |= _spread("throughput/idle", idle, worst)
    return metrics


def _memory(prefix: str, what: str, values: Mapping[int, float]) -> Metrics:
    """Return the spread of a memory metric, and the number of workers that have memory."""
    if not values:
        return {}
    worst = max(values, key=lambda rank: values[rank])
    workers = {f"{prefix}workers": float(len(values))}
    return workers | _spread(f"{prefix}{what}", values, worst)


def _spread(name: str, values: Mapping[int, float], worst: int) -> Metrics:
    """Return minimum, mean and maximum over the workers, and the number of the worst one."""
    return {
        f"{name}_min": min(values.values()),
        f"{name}_mean": fmean(values.values()),
        f"{name}_max": max(values.values()),
        f"{name}_worst_worker": float(worst),
    }


def merge(*parts: Metrics) -> Metrics:
    """Merge metrics, in order; each name may occur in one part only."""
    merged: Metrics = {}
    for part in parts:
        duplicates = merged.keys() & part.keys()
        assert not duplicates, f"duplicate metric names: {sorted(duplicates)}"
        merged |= part
    return merged


def measured(metrics: Metrics) -> Metrics:
    """Return the metrics without non-finite values if counts under `nonfinite/` explain them."""
    if not any(name.startswith("nonfinite/") for name in metrics):
        return metrics
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def nonfinite_causes(metrics: Metrics) -> str:
    """Return what was not finite, and on which worker; empty if no count is present."""
    places = [name.split("/")[:0:-1] for name in metrics if name.startswith("nonfinite/")]
    return ", ".join(" of ".join(place) for place in sorted(places))


def nonfinite_keys(metrics: Metrics) -> tuple[str, ...]:
    """Return the sorted names whose value is NaN or infinite."""
    return tuple(sorted(name for name, value in metrics.items() if not math.isfinite(value)))
