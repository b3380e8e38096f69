"""Rules for the keys of `data_config`. Imports no torch."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from mindrl.config.data import paths_of
from mindrl.config.finding import Finding, broken, must_be_default, repeated, spelled
from mindrl.config.megatron_training import PLAIN
from mindrl.config.run import RunConfig

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
"""Suffixes of data files."""


def data_keys(config: RunConfig) -> list[str]:
    """Return the keys of a run's data; evaluation data comes last."""
    keys = ["megatron_training.data_path", "megatron_training.test_data_path"]
    for name in ("train_sets", "eval_sets"):
        sets = getattr(config.data_config, name)
        keys += [f"data_config.{name}.{place}.data_path" for place in range(len(sets))]
    return [key for key in keys if config.value_of(key) is not None]


def is_pattern(path: str) -> bool:
    """Return whether a path is a pattern, which may match several files."""
    return any(letter in path for letter in "*?[")


def is_address(path: str) -> bool:
    """Return whether text is an address, `https://..` or `hf://..`, instead of a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def data_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what makes the data sets unusable."""
    for field in data_keys(config):
        for path in paths_of(config.value_of(field)):
            if is_address(path):
                need = (
                    "is an address; use a path on this machine or a name on the Hugging "
                    "Face hub, such as openai/gsm8k/main/train*"
                )
                yield broken(field, path, need)
                continue
            suffix = Path(path).suffix.lower()
            # A folder may have any suffix or none.
            if not (suffix in ("", *SUFFIXES) or is_pattern(path) or Path(path).is_dir()):
                need = f"must be a folder or a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file"
                yield broken(field, path, need)
    for rule in (
        _training,
        _plain_text,
        _held_out,
        _order,
        _pass_rates,
        _evaluations,
        _rewards,
        _arguments,
        _best,
    ):
        yield from rule(config)


def _training(config: RunConfig) -> Iterator[Finding]:
    """Training data must come from exactly one of the two keys."""
    field, sets = "megatron_training.data_path", config.data_config.train_sets
    path = config.megatron_training.data_path
    if path is None and not sets:
        text = f"{field} is missing: give a file, or sets in data_config.train_sets"
        yield Finding(text, field)
    if path is not None and sets:
        need = "and data_config.train_sets both name training data; remove one"
        yield broken(field, path, need, None)
    yield from _named("data_config.train_sets", [each.name for each in sets])


def _plain_text(config: RunConfig) -> Iterator[Finding]:
    """Plain text has no system prompt."""
    training = config.megatron_training
    if training.takes_plain_text and training.system_prompt is not None:
        field = "megatron_training.system_prompt"
        text = (
            f"{field} cannot be used with megatron_training.chat_template={PLAIN}; put "
            "the text into the rows"
        )
        yield Finding(text, field, training.system_prompt, (None,))


def _held_out(config: RunConfig) -> Iterator[Finding]:
    """Only one of two keys may define the held-out data."""
    field, share = "data_config.held_out_fraction", config.data_config.held_out_fraction
    if share and config.megatron_training.test_data_path is not None:
        need = "and megatron_training.test_data_path both define the held-out data; remove one"
        yield broken(field, share, need, 0)


def _order(config: RunConfig) -> Iterator[Finding]:
    """`order=by_column` needs a column; other orders must not have one."""
    data, field = config.data_config, "data_config.order_column"
    if data.order == "by_column":
        if data.order_column is None:
            text = f"{field} is missing: data_config.order=by_column needs a column with numbers"
            yield Finding(text, field)
        return
    need = f"has an effect only with data_config.order=by_column, found {spelled(data.order)}"
    names = ("order_column", "order_descending", "order_stages")
    yield from must_be_default("data_config", data, need, names)


def _pass_rates(config: RunConfig) -> Iterator[Finding]:
    data = config.data_config
    low, high = data.pass_rate_low, data.pass_rate_high
    if low > high:
        need = f"must not be above data_config.pass_rate_high={spelled(high)}"
        yield broken("data_config.pass_rate_low", low, need, high)
    if data.pass_rate_column is None and (low, high) != (0.0, 1.0):
        text = (
            "data_config.pass_rate_column is missing: data_config.pass_rate_low and "
            "pass_rate_high need a column with pass rates"
        )
        yield Finding(text, "data_config.pass_rate_column")


def _evaluations(config: RunConfig) -> Iterator[Finding]:
    sets = config.data_config.eval_sets
    yield from _named("data_config.eval_sets", [each.name for each in sets])
    for place, each in enumerate(sets):
        field = f"data_config.eval_sets.{place}"
        if each.samples > 1 and each.temperature == 0:
            need = (
                f"of {each.name} needs a temperature above 0, found 0; at 0 all answers "
                "to a prompt are the same"
            )
            yield broken(f"{field}.samples", each.samples, need, 1)
        yield from _answer_length(config, f"{field}.max_tokens", each.max_tokens)


def _rewards(config: RunConfig) -> Iterator[Finding]:
    """Each source in the configuration needs a reward; functions and weights must pair up."""
    data = config.data_config
    rewarded = [each.data_source for each in data.rewards]
    yield from _named("data_config.rewards", rewarded)
    for place, reward in enumerate(data.rewards):
        names, weights = reward.verifier_function, reward.verifier_weight
        field = f"data_config.rewards.{place}.verifier_weight"
        if not names or len(names) != len(weights) or len({*names}) < len(names):
            text = (
                f"{field} of {reward.data_source} has {len(weights)} entries and "
                f"verifier_function has {len(names)}; list each function once and give "
                "one weight for each"
            )
            yield Finding(text, field, weights, ((*weights, *(1.0,) * len(names))[: len(names)],))
    for key in ("train_sets", "eval_sets") if rewarded and data.source_column is None else ():
        for place, each in enumerate(getattr(data, key)):
            field = f"data_config.{key}.{place}"
            if each.data_source is not None:
                yield from _rewarded(f"{field}.data_source", each.data_source, rewarded)
            else:
                yield from _rewarded(f"{field}.name", each.name, rewarded)


def _arguments(config: RunConfig) -> Iterator[Finding]:
    """Each reward function has one set of arguments, the same in all sections."""
    sections = {"rl_config": config.rl_config.verifier_function}
    for place, reward in enumerate(config.data_config.rewards):
        sections[f"data_config.rewards.{place}"] = reward.verifier_function
    seen: dict[str, object] = {}
    for section, names in sections.items():
        field, given = f"{section}.verifier_kwargs", config.value_of(f"{section}.verifier_kwargs")
        if given and len(given) != len(names):
            text = (
                f"{field} has {len(given)} entries and verifier_function has "
                f"{len(names)}; give one for each function, {{}} for a function without "
                "arguments"
            )
            yield Finding(text, field)
        for name, own in zip(names, given or ({},) * len(names), strict=False):
            if seen.setdefault(name, own) != own:
                yield Finding(f"{field} of {name} must be the same in all sections", field)


def _rewarded(field: str, source: str, rewarded: list[str]) -> Iterator[Finding]:
    if source not in rewarded:
        yield unknown(field, source, rewarded, "data_source of data_config.rewards")


def _named(field: str, names: list[str]) -> Iterator[Finding]:
    """Names of sets must be unique."""
    if twice := repeated(names):
        text = f"{field} has {', '.join(twice)} more than once; give each set its own name"
        yield Finding(text, field, tuple(names))


def _answer_length(config: RunConfig, field: str, longest: int | None) -> Iterator[Finding]:
    """Prompt plus answer must fit the engine; the trainer does not process them."""
    prompt, limit = config.rl_config.max_prompt_length, config.generate_config.max_model_len
    if longest is not None and prompt + longest > limit:
        need = (
            f"plus rl_config.max_prompt_length={prompt} exceeds "
            f"generate_config.max_model_len={limit}; use {limit - prompt} or less"
        )
        yield broken(field, longest, need, *([limit - prompt] if limit > prompt else []))


def _best(config: RunConfig) -> Iterator[Finding]:
    """The set that determines the best model must exist."""
    name, names = config.data_config.best_by, [each.name for each in config.data_config.eval_sets]
    if name is not None and name not in names:
        found = unknown("data_config.best_by", name, names, "set of data_config.eval_sets")
        yield replace(found, legal=(*found.legal, None))


def unknown(field: str, name: str, names: Iterable[str], where: str) -> Finding:
    """Return a finding that lists the known names and the nearest one."""
    known = [*names]
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return broken(field, name, f"is not a {where}; known: {', '.join(known) or 'none'}", *near)
