"""Which of the values that a rule allows would please all other rules too."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from mindrl.allocation.into_config import in_words_of_backend
from mindrl.config.finding import Finding, Value
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.errors import ConfigError
from mindrl.platform.device import Platform
from mindrl.preflight.checks import Checked, checked_run, platform_findings
from mindrl.preflight.memory_checks import Capacity
from mindrl.preflight.model_checks import Models, model_findings
from mindrl.preflight.shipped import unknown_sizes

_MOST_TRIED = 64
_MOST_NAMED = 2


def checked_with_legal_values(
    config: RunConfig, platform: Platform, capacity: Capacity, *, needs_files: bool = True
) -> Checked:
    """Ask every rule, as `checked_run`, and keep of legal values the nearest that help.

    A value helps where it ends all findings on its key and makes none on another.
    """
    checked = checked_run(config, platform, capacity, needs_files=needs_files)
    trial = _Trial(config, platform, checked)
    named = [replace(each, legal=trial.nearest(each)) for each in checked.findings]
    spelled = [in_words_of_backend(config, each) for each in named]
    unknown = [] if needs_files else unknown_sizes(config)
    return replace(checked, findings=[*spelled, *unknown])


@dataclass(frozen=True)
class _Trial:
    """A configuration that was found wanting, to be tried with other values."""

    config: RunConfig
    platform: Platform
    checked: Checked

    def nearest(self, finding: Finding) -> tuple[Value, ...]:
        """Return the nearest values that help."""
        tried = finding.legal[:_MOST_TRIED]
        good = (value for value in tried if self._helps(finding.field, value))
        return tuple(islice(good, _MOST_NAMED))

    def _helps(self, field: str, value: Value) -> bool:
        try:
            changed = _with_value(self.config, field, value)
        except ConfigError:
            return False
        left = {finding.field for finding in self._rules(changed)}
        return field not in left and left <= {each.field for each in self.checked.findings}

    def _rules(self, changed: RunConfig) -> Sequence[Finding]:
        """Ask the rules whose answer may change; folders are as they are."""
        found = [*findings(changed), *platform_findings(changed, self.platform)]
        models = self.checked.models
        return [*found, *model_findings(changed, Models(models.of))] if models else found


def _with_value(config: RunConfig, field: str, value: Value) -> RunConfig:
    values: dict[str, Any] = asdict(config)
    *sections, key = field.split(".")
    place = values
    for section in sections:
        place = place[section]
    place[key] = value
    return load_run_config(values)
