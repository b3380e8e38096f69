"""An environment variable of the worker processes: its value, whose it is, why, and who says so."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

Rule = Literal["fixed", "default", "deterministic", "left", "refused"]
"""Who decides. fixed: mindrl, always. default: mindrl, unless the user has set it. deterministic:
mindrl, in a run that promises the same bits. left: the user. refused: no run starts with such a
value."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What mindrl does about one variable, as environment.yaml says it."""

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
        return bool(found is not None and self.pattern and re.search(self.pattern, found))


@cache
def settings_by_owner() -> Mapping[str, tuple[Setting, ...]]:
    """Read what is done on every device, for the `engine`, and on each kind of device."""
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
    """Return what the workers of this process get; what it has set itself wins over defaults."""
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
