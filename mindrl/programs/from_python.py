"""Rewards and rows that a Python program passes instead of configuration values."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mindrl.errors import ConfigError
from mindrl.observability.output_files import json_line, output_errors, replace_file
from mindrl.observability.regular_files import read_regular
from mindrl.observability.units import quoted

Reward = str | Callable[..., object]
"""Name of a builtin, or a function that reward processes can import."""
RowSource = str | Path | Iterable[Mapping[str, Any]]
"""A data file, or rows with the same columns: a list, a `datasets.Dataset`, a generator."""


def reward_values(rewards: Sequence[Reward] | Mapping[Reward, float]) -> dict[str, object]:
    """Return the `rl_config` values for reward functions; weights that are not given are 1.

    Raises:
        ConfigError: Another process cannot import a function by its name.
    """
    weights = rewards if isinstance(rewards, Mapping) else dict.fromkeys(rewards, 1.0)
    return {
        "verifier_function": [reward_name(each) for each in weights],
        "verifier_weight": [float(weight) for weight in weights.values()],
    }


def reward_name(reward: Reward) -> str:
    """Return the name by which reward processes import a function.

    Raises:
        ConfigError: It is a lambda, a nested function, or was defined in a notebook cell.
    """
    if isinstance(reward, str):
        return reward
    name = getattr(reward, "__qualname__", "")
    module = sys.modules.get(getattr(reward, "__module__", ""))
    if module is None or vars(module).get(name) is not reward:
        raise _unnamed(reward, "no module contains it under its name")
    spec, file = vars(module).get("__spec__"), vars(module).get("__file__")
    if spec is not None and spec.parent:
        return f"{spec.name}:{name}"
    if file is None:
        raise _unnamed(reward, "it is defined in a notebook or an interactive session")
    # A full path, so that reward processes find it from any working folder.
    return f"{Path(file).resolve()}:{name}"


def _unnamed(reward: object, why: str) -> ConfigError:
    return ConfigError(
        f"reward_functions: the reward processes cannot import {quoted(reward)} by name: {why}. "
        "Define it with `def` in a file (in a notebook: %%writefile my_reward.py as the first line "
        "of its cell), and import it from there"
    )


def rows_place(folder: Path, argument: str, rows: RowSource) -> str:
    """Return the path of the rows of a run."""
    if isinstance(rows, (str, Path)):
        return str(rows)
    return str(folder / "data" / f"{argument}.jsonl")


def keep_rows(folder: Path, argument: str, rows: RowSource, *, goes_on: bool) -> None:
    """Write rows that were passed as objects to a file, for the run and for resuming it.

    Raises:
        ConfigError: A row is invalid, or the run in this folder was started with other rows.
        OutputError: The file cannot be written.
    """
    if isinstance(rows, (str, Path)):
        return
    path = Path(rows_place(folder, argument, rows))
    content = "".join(_line(argument, number, row) for number, row in enumerate(rows, 1)).encode()
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if goes_on and path.exists() and read_regular(path) != content:
            raise ConfigError(
                f"{argument}: its rows differ from those of the run in {folder}, which are in "
                f"{path}; name another output_dir"
            )
    replace_file(path, content)


def _line(argument: str, number: int, row: object) -> str:
    if not isinstance(row, Mapping):
        raise ConfigError(
            f"{argument}, row {number}: {quoted(row)} must be a mapping of columns; for a pandas "
            "DataFrame pass frame.to_dict('records')"
        )
    try:
        return json_line({**row}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{argument}, row {number}: not JSON: {error}") from error
