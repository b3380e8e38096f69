"""Rules of `rl_config.tracking`."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken, did_you_mean
from mindrl.config.run import RunConfig
from mindrl.config.tracking import TRACKERS

_FIELD = "rl_config.tracking.trackers"


def tracking_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield trackers that are unknown or listed twice."""
    names = config.rl_config.tracking.trackers
    if len({*names}) < len(names):
        yield broken(_FIELD, names, "must list each tracker once", tuple(dict.fromkeys(names)))
    for name in names:
        if name not in TRACKERS and ":" not in name:
            need = (
                f"must be {', '.join(TRACKERS)} or "
                f"'package.module:function'{_instead(name)}{did_you_mean(name, TRACKERS)}"
            )
            yield broken(_FIELD, name, need)


def _instead(name: str) -> str:
    """Return the key of a destination that is no tracker."""
    own = {"tensorboard": "rl_config.use_tensorboard", "prometheus": "prometheus_port"}
    return f"; use the key {own[name]} for {name}" if name in own else ""
