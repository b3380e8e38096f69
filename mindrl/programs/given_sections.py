"""Checks of the arguments and sections that a Python program passes to `train`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrl.config.finding import did_you_mean
from mindrl.config.load import field_names, same_name
from mindrl.config.section_types import SectionArguments
from mindrl.config.text import nested
from mindrl.errors import ConfigError
from mindrl.migrate.mapped import MISSING
from mindrl.migrate.names import other_name
from mindrl.observability.units import quoted

_MODEL = "actor_config.load"
_OTHER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("reward_funcs", "reward_func", "reward_function", "reward_fn", "rewards"),
        "reward_functions=[my_reward]",
    ),
    **dict.fromkeys(("dataset", "train_data", "data"), "train_dataset=rows"),
    **dict.fromkeys(("eval_data", "test_dataset", "test_data"), "eval_dataset=rows"),
    **dict.fromkeys(("callback",), "callbacks=[my_callback]"),
    **dict.fromkeys(("run_dir", "save_dir", "output"), 'output_dir="outputs/mine"'),
}
"""Argument names that users may try, and the correct spelling."""
_MODEL_WORDS = ("model", "model_name", "model_path", "model_id", "pretrained")
_ARGUMENTS = (
    *("config", "reward_functions", "train_dataset", "eval_dataset"),
    *("callbacks", "output_dir"),
)


def checked_sections(sections: SectionArguments) -> dict[str, Mapping[str, object]]:
    """Return the sections that change the configuration.

    Raises:
        ConfigError: Some are no sections or no mappings; all are listed, each with a correct line.
    """
    given: dict[str, Any] = {**sections}
    if findings := [found for name, value in given.items() if (found := _finding(name, value))]:
        raise ConfigError("\n".join(findings))
    return given


def check_arguments(**arguments: object) -> None:
    """Check the types of the arguments of `train`.

    Raises:
        ConfigError: Some have the wrong type; all are listed, one per line.
    """
    wrong = [
        f"{name}={quoted(value)} must be {need}"
        for name, value in arguments.items()
        if (need := _need(name, value))
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _need(name: str, value: object) -> str:
    """Return what an argument must be; empty if it is valid."""
    if name == "reward_functions" and isinstance(value, Mapping):
        numbers = [isinstance(weight, int | float) for weight in value.values()]
        return "" if all(numbers) else "functions with weights, such as {my_reward: 1.0}"
    is_right, need = _NEEDS[name]
    return "" if is_right(value) else f"{need[0]}, such as {name}={need[1]}"


def _is_path(value: object) -> bool:
    return isinstance(value, str | Path)


def _are_callable(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(callable, value))


_ROWS = ("a data file or rows", "[{'messages': '1+2=?', 'answer': '3'}]")
_NEEDS: Mapping[str, tuple[Callable[[object], bool], tuple[str, str]]] = {
    "config": (_is_path, ("the name of a configuration or a YAML file", "'grpo_tiny_cpu'")),
    "output_dir": (
        lambda value: value is None or _is_path(value),
        ("a folder", "'outputs/mine'"),
    ),
    **dict.fromkeys(
        ("train_dataset", "eval_dataset"),
        (lambda value: value is None or isinstance(value, Iterable | Path), _ROWS),
    ),
    "callbacks": (_are_callable, ("a list of functions", "[my_callback]")),
    "reward_functions": (
        lambda value: isinstance(value, Iterable) and not _is_path(value),
        ("a list or a mapping with weights", "[my_reward]"),
    ),
}
"""By argument: the test, the description of legal values, an example."""


def _finding(name: str, value: object) -> str:
    """Return what is wrong with a section; empty if it is valid."""
    known = field_names([name]) if name in field_names(()) else []
    if known:
        whole = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        example = f"{name}={{{known[0]!r}: ...}}"
        return "" if whole else f"{name}={quoted(value)} must be a dict of keys, such as {example}"
    if name in _MODEL_WORDS:
        return _hint(name, {_MODEL: value})
    if name in _OTHER_WORDS:
        return f"train() has no argument {name}; write {_OTHER_WORDS[name]}"
    if (other := other_name(name, value)) is not None and other.sets:
        return _hint(name, other.sets)
    if (there := same_name(name)) is not None:
        return _hint(name, {there: value})
    hint = did_you_mean(name, [*_ARGUMENTS, *field_names(())])
    return f"train() has no argument {name}; the sections are {', '.join(field_names(()))}{hint}"


def _hint(name: str, sets: Mapping[str, object]) -> str:
    sections = nested(sets)
    arguments = ", ".join(f"{section}={_spelled(keys)}" for section, keys in sections.items())
    return f"train() has no argument {name}; write {arguments}"


def _spelled(value: object) -> str:
    """Return a value as Python source; an ellipsis if the user must choose it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(_pairs(value))}}}"
    return "..." if value is MISSING else quoted(value)


def _pairs(values: Mapping[str, object]) -> Iterator[str]:
    for key, value in values.items():
        yield f"{key!r}: {_spelled(value)}"
