"""Checks of the parts of an algorithm by name: advantage estimator and policy loss."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module

from mindrl.algorithms.policy_loss_names import policy_loss_names
from mindrl.config.finding import Finding, Value, broken
from mindrl.config.rl import ESTIMATORS
from mindrl.config.run import RunConfig
from mindrl.errors import MindrlError
from mindrl.migrate.mapped import MISSING
from mindrl.migrate.names import OtherName, other_name

_ESTIMATOR, _LOSS = "rl_config.adv_estimator", "rl_config.policy_loss"
_THEIR_KEYS = {
    _ESTIMATOR: ("algorithm.adv_estimator", "advantage_estimator"),
    _LOSS: ("actor_rollout_ref.actor.policy_loss.loss_mode", "loss_type"),
}
"""Keys of other trainers with the same kind of value: verl, then OpenRLHF, slime or TRL."""


def part_findings(config: RunConfig) -> Iterator[Finding]:
    """Check the names, and try the user's own parts and the loss's options, which import torch."""
    rl, losses = config.rl_config, policy_loss_names()
    if not config.reads_answers:
        yield from _unknown_part(_ESTIMATOR, rl.adv_estimator, ESTIMATORS)
    yield from _unknown_part(_LOSS, rl.policy_loss, losses)
    if ":" in rl.adv_estimator:
        yield from _tried("estimators", "resolve_estimator", rl.adv_estimator)
    if ":" in rl.policy_loss or (rl.policy_loss in losses and rl.policy_loss_options):
        yield from _tried("token_loss", "resolve_token_loss", rl)


def _unknown_part(field: str, name: str, builtins: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding if a part is neither a builtin nor the user's own."""
    if ":" in name or name in builtins:
        return
    need = f"must be {', '.join(builtins)}, or your own function: package.module:function"
    legal: list[Value] = [*get_close_matches(name, builtins, n=1, cutoff=0.5)]
    if (other := _other_trainers(field, name)) is not None:
        ours = [f"{key}={value}" for key, value in other.sets.items()]
        need += f"; {name} is {other.trainer}'s name: write {' '.join(ours)}"
        legal = [str(other.sets[field])] if field in other.sets else []
    yield broken(field, name, need, *legal)


def _other_trainers(field: str, name: str) -> OtherName | None:
    """Return what a name corresponds to in another trainer; None if no known trainer has it."""
    found = (other_name(key, name) for key in _THEIR_KEYS[field])
    known = (each for each in found if each is not None and each.sets)
    return next((each for each in known if MISSING not in each.sets.values()), None)


def _tried(module: str, function: str, argument: object) -> Iterator[Finding]:
    try:
        getattr(import_module(f"mindrl.algorithms.{module}"), function)(argument)
    except MindrlError as error:
        for line in str(error).splitlines():
            # An error begins with its key.
            yield Finding(line, re.split("[= ]", line, maxsplit=1)[0])
