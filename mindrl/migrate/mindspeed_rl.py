"""From a MindSpeed-RL file to the keys of this project, every key accounted for. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindrl.migrate.algorithm import algorithm_rules
from mindrl.migrate.file import TheirRun, watched
from mindrl.migrate.keys import (
    IGNORED,
    IGNORED_OF_ROLE,
    RULED,
    RULED_OF_ROLE,
    WATCHED_REASON,
)
from mindrl.migrate.mapped import Mapped, ignored
from mindrl.migrate.models import model_rules
from mindrl.migrate.releases import LEFT_OVER
from mindrl.migrate.run import run_rules

_REASONS: Mapping[str, str] = {
    **RULED,
    **LEFT_OVER,
    **{key: why for why, keys in IGNORED.items() for key in keys},
}
_REASONS_OF_ROLE: Mapping[str, str] = {
    **RULED_OF_ROLE,
    **{key: why for why, keys in IGNORED_OF_ROLE.items() for key in keys},
}


@dataclass(frozen=True, kw_only=True)
class Import:
    """What becomes of a file."""

    mapped: Sequence[Mapped]
    """Every key of the file, and the defaults that it relies on."""

    @property
    def refused(self) -> tuple[Mapped, ...]:
        """Parts of the run that are not there."""
        return tuple(each for each in self.mapped if each.kind == "refused")

    @property
    def values(self) -> Mapping[str, Any]:
        """Our keys, dotted, with their values; refused parts left out."""
        return {key: value for each in self.mapped for key, value in each.sets.items()}

    @property
    def has_critic(self) -> bool:
        """Whether the file has a critic."""
        return self.values.get("rl_config.adv_estimator") == "gae"


def import_run(theirs: TheirRun, devices_per_node: int = 8) -> Import:
    """Say what becomes of each key.

    Args:
        theirs: The file.
        devices_per_node: Which it does not say.

    Raises:
        ConfigError: It is no file of GRPO, DAPO or PPO.
    """
    found = [*run_rules(theirs, devices_per_node), *algorithm_rules(theirs)]
    found += model_rules(theirs, "actor")
    if theirs.has_critic:
        found += model_rules(theirs, "critic")
    accounted = {each.key for each in found}
    left = (*theirs.given, *theirs.nulls)
    rest = [_rest(theirs, key) for key in left if key not in accounted]
    return Import(mapped=[*found, *rest])


def _rest(theirs: TheirRun, key: str) -> Mapped:
    """Account for a key that no rule had anything to say of."""
    section, _, name = key.partition(".")
    if key in theirs.nulls:
        return ignored(key, "null is as if left out")
    if section == "model":
        name = name.partition(".")[2]
    winner = next(_winners(theirs, section, name, key), None)
    if winner:
        return ignored(key, f"{winner} has the last word")
    if section == "critic_config" and not theirs.has_critic:
        return ignored(key, "there is no critic without rl_config.adv_estimator: gae")
    if watched(key):
        return ignored(key, WATCHED_REASON)
    reasons = _REASONS if key in _REASONS else _REASONS_OF_ROLE
    return ignored(key, reasons.get(key) or reasons.get(name) or "as here")


def _winners(theirs: TheirRun, section: str, name: str, key: str) -> Iterator[str]:
    """Find the place that hides a key of a model."""
    if section in ("model", "megatron_training"):
        place = theirs.place("actor", name)
        if place != key:
            yield place
