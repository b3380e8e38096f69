"""Import rules for the trackers W&B, SwanLab, MLflow and TensorBoard. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.config.tracking import TRACKERS
from mindrl.migrate.file import TheirRun
from mindrl.migrate.mapped import SAME_MEANING, Mapped

_NAMES, _OFFLINE, _TENSORBOARD = (
    *(f"rl_config.tracking.{key}" for key in ("trackers", "offline")),
    "rl_config.use_tensorboard",
)
_OURS = {"project": "rl_config.tracking.project", "exp_name": "rl_config.tracking.experiment"}


def tracker_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the trackers of a MindSpeed-RL file."""
    given, mode_key = theirs.given, "rl_config.swanlab_mode"
    mode = given.get(mode_key)
    is_there = {
        "wandb": bool(given.get("rl_config.use_wandb")),
        "swanlab": bool(given.get("rl_config.use_swanlab")) and mode != "disabled",
    }
    names = [name for name, there in is_there.items() if there]
    for name in names:
        yield Mapped(f"rl_config.use_{name}", "renamed", {_NAMES: names}, SAME_MEANING)
    for what, ours in _OURS.items():
        keys = [f"rl_config.{name}_{what}" for name in names]
        first, *others = [key for key in keys if given.get(key)] or [""]
        if first:
            yield Mapped(first, "renamed", {ours: str(given[first])}, "used by all trackers")
        for key in others:
            yield Mapped(key, "derived", note=f"was {given[key]}; all trackers use {ours}")
    if is_there["swanlab"] and mode is not None:
        offline = mode in ("local", "offline")
        note = f"was {mode}; used by all trackers"
        yield Mapped(mode_key, "derived", {_OFFLINE: offline}, note)


def verl_trackers(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the trackers of a verl run."""
    key = "trainer.logger"
    loggers = theirs.get(key, [])
    loggers = [loggers] if isinstance(loggers, str) else loggers
    names = [name for name in loggers if name in TRACKERS]
    if key in theirs:
        others = [name for name in loggers if name not in (*TRACKERS, "console", "tensorboard")]
        note = f"not supported: {', '.join(map(str, others))}" if others else SAME_MEANING
        sets = {_NAMES: names, _TENSORBOARD: "tensorboard" in loggers}
        yield Mapped(key, "derived" if others else "renamed", sets, note)
    for theirs_key, ours in zip(("project_name", "experiment_name"), _OURS.values(), strict=True):
        place = f"trainer.{theirs_key}"
        if names and theirs.get(place):
            yield Mapped(place, "renamed", {ours: str(theirs[place])}, SAME_MEANING)
        elif place in theirs:
            yield Mapped(place, "ignored", note="no tracker of mindrl uses it")
