"""Metrics: numbers under slash-separated names such as `update/policy_loss`."""

import math
from collections.abc import Mapping, Sequence
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


def computed(metrics: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return the metrics without times, bytes, memory and throughput, which vary between runs."""
    return {name: value for name, value in metrics.items() if not name.startswith(_OF_CARRYING_OUT)}


def mean_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Return the mean of each name over the parts, which must have the same names.

    A NaN or inf in a part makes the mean NaN or inf.
    """
    assert parts, "the mean needs at least one set of metrics"
    names = parts[0].keys()
    for part in parts:
        assert part.keys() == names, f"metric names differ: {sorted(part.keys() ^ names)}"
    return {name: sum(part[name] for part in parts) / len(parts) for name in names}


def update_metrics(model: str, updates: Sequence[Metrics]) -> Metrics:
    """Average the optimizer steps of a step, as `<model>/<name>`, and count the skipped ones.

    `<model>/skipped` is that count. Only steps that were taken enter the means: if all were
    skipped, only the count is returned.
    """
    taken = [update for update in updates if not update["skipped"]]
    means = mean_metrics(taken) if taken else {}
    means["skipped"] = float(len(updates) - len(taken))
    return {f"{model}/{name}": value for name, value in means.items()}


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
