"""An environment variable of the worker processes: value, rule, reason and source."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from packaging.version import Version

Rule = Literal["fixed", "default", "deterministic", "left", "refused"]
"""How the value is chosen. fixed: mindrl sets it, always. default: mindrl sets it unless the user
has. deterministic: mindrl sets it in a bitwise reproducible run. left: the user sets it. refused:
no run starts with a matching value."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Treatment of one variable, as listed in environment.yaml."""

    name: str
    rule: Rule
    value: str = ""
    """Value that mindrl sets; for `left`, the reader's default. May be empty."""
    pattern: str = ""
    """Regular expression, searched for. `refused`: the refused values. `left`: values that the
    doctor reports."""
    why: str
    source: str
    """File and version, or document, that documents it."""
    until: str = ""
    """First release of vllm-ascend that does not read it; empty if each tested one does."""
    instead: str = ""
    """What that release reads instead."""

    def is_read(self, plugin: str | None) -> bool:
        """Return whether this release of vllm-ascend reads it; None is any release."""
        if not self.until or plugin is None:
            return True
        # A release candidate already belongs to its release.
        return Version(plugin).release < Version(self.until).release

    def matches(self, environment: Mapping[str, str]) -> bool:
        """Return whether the variable's value matches the pattern."""
        found = environment.get(self.name)
        return bool(found is not None and self.pattern and re.search(self.pattern, found))


@cache
def settings_by_owner() -> Mapping[str, tuple[Setting, ...]]:
    """Read environment.yaml: settings of the `engine` (all devices) and of each device kind."""
    text = Path(__file__).with_name("environment.yaml").read_text(encoding="utf-8")
    found: dict[str, list[Setting]] = {}
    for owner, rules in yaml.safe_load(text).items():
        found[owner] = []
        for rule, variables in rules.items():
            for assignment, said in variables.items():
                name, _, value = assignment.partition("=")
                found[owner].append(Setting(name=name, rule=rule, value=value, **said))
    return {owner: tuple(settings) for owner, settings in found.items()}


def values(
    settings: Iterable[Setting], environment: Mapping[str, str], *, deterministic: bool
) -> dict[str, str]:
    """Return the variables for the workers of this process; the user's values replace defaults."""
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
    """Return a sentence for each variable with a refused value."""
    return [
        f"{setting.name}={environment[setting.name]}: {setting.why}; unset it or change it"
        for setting in settings
        if setting.rule == "refused" and setting.matches(environment)
    ]
