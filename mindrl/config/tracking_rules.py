"""Rules of `rl_config.tracking`."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken, did_you_mean
from mindrl.config.run import RunConfig
from mindrl.config.tracking import TRACKERS

_FIELD = "rl_config.tracking.trackers"


def tracking_findings(config: RunConfig) -> Iterator[Finding]:
    """Say so where a tracker has no such name, or is named twice."""
    names = config.rl_config.tracking.trackers
    if len({*names}) < len(names):
        yield broken(_FIELD, names, "must name each tracker once", tuple(dict.fromkeys(names)))
    for name in names:
        if name not in TRACKERS and ":" not in name:
            need = (
                f"must be of {', '.join(TRACKERS)} or 'package.module:function'"
                f"{_instead(name)}{did_you_mean(name, TRACKERS)}"
            )
            yield broken(_FIELD, name, need)


def _instead(name: str) -> str:
    """Name the key of what needs no tracker."""
    own = {"tensorboard": "rl_config.use_tensorboard", "prometheus": "prometheus_port"}
    return f"; {name} has a key of its own, {own[name]}" if name in own else ""
