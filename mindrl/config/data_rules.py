"""Rules for the keys of `data_config`. Imports no torch."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig

SUFFIXES = (".jsonl", ".parquet")
"""Of data files."""


def data_files(config: RunConfig) -> dict[str, str]:
    """Return the data files of a run by their keys."""
    training = config.megatron_training
    keys = {f"megatron_training.{name}": name for name in ("data_path", "test_data_path")}
    found = {key: getattr(training, name) for key, name in keys.items()}
    for place, each in enumerate(config.data_config.eval_sets):
        found[f"data_config.eval_sets.{place}.data_path"] = each.data_path
    return {key: path for key, path in found.items() if path is not None}


def data_findings(config: RunConfig) -> Iterator[Finding]:
    """Say what keeps the data sets from being used."""
    sets = config.data_config.eval_sets
    yield from _named("data_config.eval_sets", [each.name for each in sets])
    for place, each in enumerate(sets):
        field = f"data_config.eval_sets.{place}"
        yield from _file(f"{field}.data_path", each.data_path)
        if each.samples > 1 and each.temperature == 0:
            need = (
                f"of {each.name} needs a temperature above 0, found 0, at which all answers to a "
                "prompt are one"
            )
            yield broken(f"{field}.samples", each.samples, need, 1)
        yield from _answer_length(config, f"{field}.max_tokens", each.max_tokens)
    yield from _best(config)


def _named(field: str, names: list[str]) -> Iterator[Finding]:
    """No two sets have one name."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        text = f"{field} has {', '.join(twice)} more than once; each set needs a name of its own"
        yield Finding(text, field, tuple(names))


def _file(field: str, path: str) -> Iterator[Finding]:
    if Path(path).suffix.lower() not in SUFFIXES:
        yield broken(field, path, f"must end in {' or '.join(SUFFIXES)}")


def _answer_length(config: RunConfig, field: str, longest: int | None) -> Iterator[Finding]:
    """The engine takes a prompt and an answer to it; the trainer does not see these."""
    prompt, limit = config.rl_config.max_prompt_length, config.generate_config.max_model_len
    if longest is not None and prompt + longest > limit:
        need = (
            f"plus rl_config.max_prompt_length={prompt} is above "
            f"generate_config.max_model_len={limit}; needs {limit - prompt} or less"
        )
        yield broken(field, longest, need, *([limit - prompt] if limit > prompt else []))


def _best(config: RunConfig) -> Iterator[Finding]:
    """What chooses the best is there."""
    name, names = config.data_config.best_by, [each.name for each in config.data_config.eval_sets]
    if name is not None and name not in names:
        yield unknown("data_config.best_by", name, names, "data_config.eval_sets")


def unknown(field: str, name: str, names: Iterable[str], where: str) -> Finding:
    """Say which names there are instead of one."""
    known = [*names]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    need = f"is no set of {where}, which has {', '.join(known) or 'none'}"
    return broken(field, name, need, *near, None)
