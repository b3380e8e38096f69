"""Fingerprints of a run's input files: data, and the source of the user's functions."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mindrl.checkpoint.commits import checksum_of
from mindrl.config.data_rules import data_keys
from mindrl.config.environment import NamedEnvironment
from mindrl.config.own_functions import named_object
from mindrl.config.run import RunConfig
from mindrl.data.files import files_of
from mindrl.trainer.imported_files import imported_files

Prints = Mapping[str, list[list[Any]]]
"""Name, bytes and checksum of files by configuration key, with `_IMPORTS` for imported files."""
_EVALUATION = "data_config.eval_sets"
"""Prefix of data keys that may differ from the resumed run."""
_IMPORTS = " imports"
"""Suffix of a key, for the files that its own files import."""
_PARTS = ("rl_config.adv_estimator", "rl_config.policy_loss", "megatron_training.own_models")

_SECTION = "environment_config"
_TURNS = tuple(f"{_SECTION}.{name}" for name in ("environment", "environments", "tools", "agent"))


def input_prints(config: RunConfig) -> Prints:
    """Return the fingerprints of all files that determine a run's results."""
    keys = (key for key in data_keys(config) if not key.startswith(_EVALUATION))
    prints = {key: _prints(files_of(config.value_of(key))) for key in keys}
    for key, names in _user_functions(config).items():
        files = {file: None for name in names for file in _source_files(key, name)}
        prints[key] = _prints(files)
        sources = (Path(file) for file in files if Path(file).is_file())
        imported = {each: None for source in sources for each in imported_files(source)}
        prints[f"{key}{_IMPORTS}"] = _prints(each for each in imported if str(each) not in files)
    return {key: found for key, found in prints.items() if found}


def shared_prints(config: RunConfig) -> dict[str, list[str]]:
    """Return the checksums of training data and rewards, which must be equal in two jobs.

    Keys in `megatron_training.resume_allow` are left out.
    """
    own = ("megatron_training.test_data_path", *_PARTS, *config.megatron_training.resume_allow)
    prints = input_prints(config)
    shared = {key: each for key, each in prints.items() if key.removesuffix(_IMPORTS) not in own}
    return {key: [checksum for *_, checksum in found] for key, found in shared.items()}


def changed_inputs(before: Prints, inputs: Prints, allowed: Collection[str]) -> Iterator[str]:
    """Yield a description of each file that differs from the resumed run.

    Keys in `allowed` may differ. Checkpoints of earlier versions lack fingerprints.
    """
    for part, now in inputs.items():
        was, key = before.get(part), part.removesuffix(_IMPORTS)
        if was is None or key in allowed or [each[1:] for each in was] == [e[1:] for e in now]:
            continue
        new = [name for name, *content in now if content not in [each[1:] for each in was]]
        what = f"the content of {new[0]}" if new else "the list of files"
        yield (
            f"{key}: {what} has changed since the run that is resumed ({_size(was)} then, "
            f"{_size(now)} now); restore it, or accept the change with "
            f"megatron_training.resume_allow=[{key}]"
        )


def _size(prints: list[list[Any]]) -> str:
    return f"{len(prints)} file(s) of {sum(nbytes for _, nbytes, _ in prints):,} bytes"


def _user_functions(config: RunConfig) -> dict[str, list[str]]:
    """Return the user's own functions by configuration key."""
    found: dict[str, list[str]] = {}
    if config.rolls_out:
        for source, weights in config.reward_weights.items():
            found.setdefault(config.reward_key(source), []).extend(weights)
    turns = () if config.environment_config is None else _TURNS
    for key in (*_PARTS, *turns):
        value = config.value_of(key) or ()
        values = [value] if isinstance(value, str) else [*value]
        named = (
            each.environment if isinstance(each, NamedEnvironment) else each for each in values
        )
        found[key] = [*named]
    return {
        key: [name for name in names if ":" in name and "://" not in name]
        for key, names in found.items()
    }


def _source_files(key: str, name: str) -> Iterator[str]:
    """Yield the file of a name, and the file that defines the object of that name."""
    place = name.rpartition(":")[0]
    # The packages of an agent may exist only in its own interpreter.
    is_foreign = key == f"{_SECTION}.agent"
    if place.endswith(".py"):
        yield str(Path(place).expanduser().resolve())
    elif not is_foreign and (spec := find_spec(place)) is not None and spec.origin is not None:
        yield spec.origin
    if is_foreign:
        return
    with suppress(TypeError):
        if (file := inspect.getsourcefile(inspect.unwrap(named_object(key, name)))) is not None:  # type: ignore[arg-type]
            yield str(Path(file).resolve())


def _prints(files: Any) -> list[list[Any]]:
    return [
        [Path(file).name, Path(file).stat().st_size, checksum_of(Path(file))]
        for file in files
        if Path(file).is_file()
    ]
