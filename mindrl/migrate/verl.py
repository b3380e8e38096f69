"""Import of the keys of a verl run; every key gets an entry. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.migrate.mapped import SAME_MEANING, Import, Kind, Mapped
from mindrl.migrate.trackers import verl_trackers
from mindrl.migrate.verl_adapters import verl_adapters
from mindrl.migrate.verl_algorithm import algorithm_of_verl, clip_bounds
from mindrl.migrate.verl_keys import CRITIC_NAMES, DEFAULTS, FIXED, NAMES, OMITTED, REF, REFUSED
from mindrl.migrate.verl_run import run_rules, total_steps
from mindrl.migrate.verl_training import has_critic, has_reference, training_of_verl
from mindrl.migrate.verl_unused import COPIES, IGNORED, UNCHANGED
from mindrl.migrate.verl_values import check_values


def import_verl(given: Mapping[str, Any], rows: int | None = None) -> Import:
    """Return the mapping of each key of a verl run.

    Args:
        given: Dotted keys with their values; None has the same meaning as an omitted key.
        rows: Rows of the training data; None if unknown.

    Raises:
        ConfigError: A value does not have the type that its key has in verl.
    """
    theirs = {key: value for key, value in given.items() if value is not None}
    check_values(theirs)
    rules = [*algorithm_of_verl(theirs), *clip_bounds(given), *_fixed(theirs)]
    rules += [*run_rules(theirs, rows), *training_of_verl(theirs, total_steps(theirs, rows))]
    rules += [*verl_trackers(theirs), *verl_adapters(theirs)]
    # A rule may depend on other keys; it replaces the entry for a key alone.
    names = {**NAMES, **(CRITIC_NAMES if has_critic(theirs) else {})}.items()
    ruled = {each.key for each in rules}
    found = [*_names(theirs, {key: ours for key, ours in names if key not in ruled}), *rules]
    accounted = {each.key for each in found}
    found += [_left(key, given[key], theirs) for key in given if key not in accounted]
    return Import(mapped=found)


def _names(theirs: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Mapped]:
    """Yield the entries for renamed keys, and for verl defaults of omitted keys."""
    for key, ours in names.items():
        if key in theirs:
            yield Mapped(key, "renamed", {ours: theirs[key]}, SAME_MEANING)
        elif key in DEFAULTS:
            yield Mapped(key, "derived", {ours: DEFAULTS[key]}, OMITTED)


def _left(key: str, value: Any, theirs: Mapping[str, Any]) -> Mapped:
    """Return the entry for a key that no rule handled: the reason, or that it is not understood."""
    other, default = COPIES.get(key, ("", None))
    if value is None:
        return Mapped(key, "ignored", note="null: the same as without the key")
    if reason := why_ignored(key, theirs):
        return Mapped(key, "ignored", note=reason)
    if key in UNCHANGED and value == UNCHANGED[key]:
        return Mapped(key, "ignored", note="verl's default: the same as without the key")
    if other and value == theirs.get(other, default):
        return Mapped(key, "ignored", note=f"the value of {other}")
    return Mapped(
        key,
        "open",
        note=f"was {value!r}; unknown to mindrl: look for a mindrl key with this meaning",
    )


def why_ignored(key: str, theirs: Mapping[str, Any]) -> str:
    """Return why no value of a key has an effect; empty if one may have."""
    if not has_critic(theirs) and key.startswith(("critic.", "trainer.critic_")):
        return "only adv_estimator=gae trains a critic"
    if not has_reference(theirs) and key.startswith(f"{REF}."):
        return "the run has no KL term, so no reference model"
    for reason, places in IGNORED.items():
        if any(key == place or (place.endswith(".") and key.startswith(place)) for place in places):
            return reason
    if "profiler" in key:
        return "to profile a run in mindrl, set profiler_config"
    return "a class of verl" if key.endswith("._target_") else ""


def _fixed(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for parts that are not imported, and for values that each run has."""
    for key, (without, note) in REFUSED.items():
        if key in theirs:
            kind: Kind = "ignored" if theirs[key] == without else "refused"
            yield Mapped(key, kind, note="off" if kind == "ignored" else note)
    for key, (same, note) in FIXED.items():
        if key in theirs and theirs[key] in same:
            yield Mapped(key, "ignored", note="mindrl does the same without a key")
        elif key in theirs:
            yield Mapped(key, "open", note=f"was {theirs[key]!r}: {note}")
