"""From a MindSpeed-RL file to the keys of this project, every key accounted for. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindrl.migrate.algorithm import algorithm_rules
from mindrl.migrate.file import TheirRun, of_any_role
from mindrl.migrate.keys import REASONS
from mindrl.migrate.mapped import Mapped
from mindrl.migrate.models import model_rules
from mindrl.migrate.run import run_rules


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
    found += model_rules(theirs.model("actor"))
    if theirs.has_critic:
        found += model_rules(theirs.model("critic"))
    accounted = {each.key for each in found}
    left = [key for key in (*theirs.given, *theirs.nulls) if key not in accounted]
    rest = [Mapped(key, "ignored", note=_why_ignored(theirs, key)) for key in left]
    return Import(mapped=[*found, *rest])


def _why_ignored(theirs: TheirRun, key: str) -> str:
    """Say why no rule had anything to say of a key."""
    if key in theirs.nulls:
        return "null is as if left out"
    known, section = of_any_role(key), key.partition(".")[0]
    if section in ("model", "megatron_training"):
        winner = theirs.model("actor").place(known.removeprefix("role."))
        if winner != key:
            return f"{winner} has the last word"
    if section == "critic_config" and not theirs.has_critic:
        return "there is no critic without rl_config.adv_estimator: gae"
    return REASONS.get(known, "as here")
