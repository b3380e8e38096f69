"""Metrics: numbers under slash-separated names such as `update/policy_loss`."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

Metrics = dict[str, float]
ValueT = TypeVar("ValueT")

_OF_CARRYING_OUT = ("seconds/", "bytes/", "memory/", "throughput/")


def computed(metrics: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Leave out what says how a step was carried out, which differs from one time to the next."""
    return {name: value for name, value in metrics.items() if not name.startswith(_OF_CARRYING_OUT)}


def mean_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Average each name over the parts, all of which must hold the same names.

    A NaN or inf in a part stays visible in the mean.
    """
    assert parts, "the mean of no metrics"
    names = parts[0].keys()
    for part in parts:
        assert part.keys() == names, f"names differ: {sorted(part.keys() ^ names)}"
    return {name: sum(part[name] for part in parts) / len(parts) for name in names}


def update_metrics(model: str, updates: Sequence[Metrics]) -> Metrics:
    """Average the optimizer steps of a step, as `<model>/<name>`, and count those not taken.

    `<model>/skipped` is that count. Only steps that were taken enter the means: where none was,
    the count stands alone.
    """
    taken = [update for update in updates if not update["skipped"]]
    means = mean_metrics(taken) if taken else {}
    means["skipped"] = float(len(updates) - len(taken))
    return {f"{model}/{name}": value for name, value in means.items()}


def merge(*parts: Metrics) -> Metrics:
    """Join metrics into one, in order; a name may come from one part only."""
    merged: Metrics = {}
    for part in parts:
        duplicates = merged.keys() & part.keys()
        assert not duplicates, f"names given twice: {sorted(duplicates)}"
        merged |= part
    return merged


def measured(metrics: Metrics) -> Metrics:
    """Leave out what could not be measured, where a count under `nonfinite/` says why."""
    if not any(name.startswith("nonfinite/") for name in metrics):
        return metrics
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def nonfinite_causes(metrics: Metrics) -> str:
    """Say what was not finite, and on which worker; empty where nothing is counted."""
    places = [name.split("/")[:0:-1] for name in metrics if name.startswith("nonfinite/")]
    return ", ".join(" of ".join(place) for place in sorted(places))


def nonfinite_keys(metrics: Metrics) -> tuple[str, ...]:
    """Return the names, sorted, whose value is NaN or infinite."""
    return tuple(sorted(name for name, value in metrics.items() if not math.isfinite(value)))
