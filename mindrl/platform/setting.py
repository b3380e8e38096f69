"""An environment variable of the worker processes: its value, whose it is, why, and who says so."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

Rule = Literal["fixed", "default", "deterministic", "left", "refused"]
"""Who decides. fixed: mindrl, always. default: mindrl, unless the user has set it. deterministic:
mindrl, in a run that promises the same bits. left: the user. refused: no run starts with such a
value."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What mindrl does about one variable."""

    name: str
    rule: Rule
    value: str = ""
    """What mindrl sets; of a left one, what its reader takes by itself. May be empty."""
    pattern: str = ""
    """Of a refused one: the values refused, as a regular expression that is searched for. Of a
    left one: the values that the doctor speaks of."""
    why: str
    source: str
    """File and version, or document, that says so."""

    def matches(self, environment: Mapping[str, str]) -> bool:
        """Say whether the variable has a value of the pattern."""
        found = environment.get(self.name)
        return found is not None and bool(self.pattern) and bool(re.search(self.pattern, found))


def _setting(rule: Rule, assignment: str, *, why: str, source: str, pattern: str = "") -> Setting:
    """Make a setting of `NAME=value`, or of the name alone."""
    name, _, value = assignment.partition("=")
    return Setting(name=name, rule=rule, value=value, pattern=pattern, why=why, source=source)


fixed = partial(_setting, "fixed")
by_default = partial(_setting, "default")
if_deterministic = partial(_setting, "deterministic")
left = partial(_setting, "left")
refused = partial(_setting, "refused")


def values(
    settings: Iterable[Setting], environment: Mapping[str, str], *, deterministic: bool
) -> dict[str, str]:
    """Return what the worker processes get.

    Args:
        settings: Of the device and of the engine.
        environment: Of the process that starts the run; its values win over defaults.
        deterministic: Whether the run promises the same bits.
    """
    found = {}
    for setting in settings:
        match setting.rule:
            case "fixed":
                found[setting.name] = setting.value
            case "default":
                found[setting.name] = environment.get(setting.name) or setting.value
            case "deterministic" if deterministic:
                found[setting.name] = setting.value
    return found


def refusals(settings: Iterable[Setting], environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable with a value that no run starts with."""
    return [
        f"{setting.name}={environment[setting.name]}: {setting.why}; unset it or change it"
        for setting in settings
        if setting.rule == "refused" and setting.matches(environment)
    ]
