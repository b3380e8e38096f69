"""Checks the command line of a Hydra program before Hydra parses it."""

import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from mindrl.config.finding import did_you_mean
from mindrl.config.load import field_names, suggest, wrong_sections
from mindrl.config.text import nested
from mindrl.errors import ConfigError
from mindrl.migrate.names import other_name
from mindrl.preflight.shipped import config_folder
from mindrl.programs.config_files import RECIPE, run_names

VALUE_OPTIONS = {
    "--config-name": "grpo_tiny_cpu",
    "--config-dir": "configs",
    "--resume": "RUN",
    "--cfg": "job",
}
"""Options that need a value, with an example."""
FLAGS = ("--dry-run", "--elsewhere", "--help")
_FLAGS = (*FLAGS, "--resolve", "--package", "--info", "--version")
_OPTIONS = (*VALUE_OPTIONS, *_FLAGS)
_SHORT = {"-c": "--cfg", "-h": "--help", "-p": "--package", "-i": "--info", "-r": "--run"}
_SILENT = ("--run", "--hydra-help", "--shell-completion", "-sc")
_SWEEPS = ("-m", "--multirun", "--experimental-rerun")
_CHOICES = {
    "--cfg": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
    "--package": (),
}
"""Hydra's options that need a value, with the values; any if empty."""
_AN_OVERRIDE = (
    "cannot be read: it must be key=value, and text with blanks or any of ,=:()[]{}' needs its "
    "own quotes: \"key='a, b'\""
)


def taken(option: str, *others: str) -> str | None:
    """Remove an option, under any of its names, from `sys.argv`; returns its value, else None.

    Raises:
        ConfigError: The option has no value.
    """
    value, rest = None, []
    arguments = iter(sys.argv)
    for argument in arguments:
        name, equals, given = argument.partition("=")
        if name not in (option, *others):
            rest.append(argument)
            continue
        value = given if equals else next(arguments, "")
        if not value or value.startswith("-"):
            raise ConfigError(f"{name} needs a value: {name} {VALUE_OPTIONS[option]}")
    sys.argv = rest
    return value


def options_first(arguments: Sequence[str]) -> list[str]:
    """Return checked arguments with all overrides last: argparse takes them in one place only."""
    return sorted(arguments, key=_is_override)


def check_overrides(arguments: Sequence[str]) -> None:
    """Check options, and the syntax and keys of overrides.

    Raises:
        ConfigError: Some are invalid; all are listed, one per line, with suggestions.
    """
    if findings := [*_troubles([*arguments])]:
        raise ConfigError("\n".join(findings))


def refuse_no_name(arguments: Sequence[str]) -> NoReturn:
    """Refuse a start without a configuration.

    Raises:
        ConfigError: Always: what is wrong with the arguments, otherwise the names to choose from.
    """
    check_overrides(arguments)
    names = ", ".join(run_names(config_folder()))
    raise ConfigError(
        f"--config-name is missing; name one of {names}, or the path of your own file; for example "
        "--config-name grpo_tiny_cpu"
    )


def _troubles(arguments: list[str]) -> Iterator[str]:
    while arguments:
        argument = arguments.pop(0)
        if argument.startswith("-"):
            yield from _option(argument, arguments)
        elif _is_override(argument):
            yield from _override(argument)
        else:
            yield _alone(argument, arguments)


def _option(argument: str, following: list[str]) -> Iterator[str]:
    """Yield what is wrong with an option; pops its value from `following`."""
    name, equals, value = argument.partition("=")
    option = _SHORT.get(name, name)
    choices = _CHOICES.get(option, ())
    if option in _CHOICES and not equals:
        is_given = following and not following[0].startswith("-") and not _is_override(following[0])
        value = following.pop(0) if is_given else ""
    if option == "--elsewhere":
        yield f"{name} needs --dry-run; write --dry-run {name}"
    elif option in _CHOICES and (not value or (choices and value not in choices)):
        those = f"one of {', '.join(choices)}" if choices else "a section or key"
        yield f"{name} {value or 'without a value'}: it must be {those}"
    elif option in _SWEEPS:
        yield f"{name}: a program makes one run; start it once per value"
    elif option not in (*_OPTIONS, *_SILENT):
        if field_names(name.lstrip("-").split(".")[:1]):
            yield f"{name} is a key, not an option; did you mean {argument.lstrip('-')}?"
            return
        hint = did_you_mean(option.replace("_", "-"), _OPTIONS)
        yield f"{name} is an unknown option; use {', '.join(_OPTIONS)}{hint}"
    elif equals and option not in (*_CHOICES, *VALUE_OPTIONS):
        yield f"{argument}: {name} takes no value; write {name}"


def _is_override(argument: str) -> bool:
    return not argument.startswith("-") and ("=" in argument or argument.startswith("~"))


def _alone(argument: str, following: list[str]) -> str:
    """Return what is wrong with an argument that is neither an option nor an override."""
    if argument.endswith((".yaml", ".yml")) or argument in run_names(config_folder()):
        return f"{argument} has no option; did you mean --config-name {argument}?"
    *path, name = argument.split(".")
    if not path or name not in field_names(path):
        return f"{argument} {_AN_OVERRIDE}"
    if following and not following[0].startswith("-") and "=" not in following[0]:
        return f"{argument} has no value; did you mean {argument}={following.pop(0)}?"
    return f"{argument} has no value; it must be {argument}=VALUE"


def _of_files(argument: str, name: str, *, adds: bool) -> Iterator[str]:
    """Yield what is wrong with an override that names a config group or one of Hydra's own keys."""
    if name == RECIPE and not adds:
        yield f"{argument}: recipes are added with +; did you mean +{argument.lstrip('~')}?"
    elif "/" in name and not name.startswith("hydra/"):
        yield f"{argument}: unknown config group {name}; keys have dots: actor_config.lr=1e-6"


def parsed_override(argument: str) -> Override:
    """Parse an override as Hydra does.

    Raises:
        ConfigError: It is not one.
    """
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise ConfigError(f"{argument} {_AN_OVERRIDE}") from error


def _override(argument: str) -> Iterator[str]:
    """Yield what is wrong with an override."""
    try:
        override = parsed_override(argument)
    except ConfigError as error:
        yield str(error)
        return
    name = override.key_or_group
    if name.startswith("hydra.") or "/" in name or name == RECIPE:
        yield from _of_files(argument, name, adds=override.is_add())
        return
    path = name.split(".")
    for depth, key in enumerate(path):
        if key not in field_names(path[:depth]):
            value = None if override.is_sweep_override() else override.value()
            hint = other_name(name, value) or suggest(path[:depth], key)
            yield f"{name} is not a configuration key; {hint}"
            return
    if override.is_sweep_override():
        value = argument.partition("=")[2]
        as_text = f"\"{name}='{value}'\""
        yield f"{argument} has several values; write a list {name}=[{value}] or a text {as_text}"
    elif not override.is_delete():
        yield from wrong_sections(nested({name: override.value()}))
