"""Flat keys and values of a MindSpeed-RL file; unknown keys are refused."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindrl.errors import ConfigError
from mindrl.migrate.keys import DEFAULTS, DOTTED, KEYS, NEWEST, OF_ROLE, RELEASES, words

Learner = Literal["actor", "critic"]

_ROLE_SECTIONS = ("megatron_training", "actor_config", "critic_config")
_SECTIONS = (*_ROLE_SECTIONS, "rl_config", "generate_config", "profiler_config", "msprobe_config")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_TEXTS = words("""
    split num_layer_list noop_layers load save data_path tokenizer_name_or_path prompt_type
""")
"""Keys whose values stay text even if they look like a number."""
_COUNTS = words("""
    tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size
    expert_model_parallel_size num_layers_per_virtual_pipeline_stage num_layers num_experts
    num_attention_heads num_query_groups global_batch_size mini_batch_size
    filter_groups_train_batch_size seq_length max_prompt_length max_tokens max_model_len
    max_num_seqs max_num_batched_tokens max_packing_token_size actor_max_packing_token_size
    ref_max_packing_token_size update_max_packing_token_size infer_tensor_parallel_size
    infer_expert_parallel_size num_npus profile_step_end lora_r
""")
"""Keys that the rules calculate with."""
_LIMITS = ("partial_rollout_max_split", "filter_groups_max_batches")
"""Keys that the rules compare with 0 or 1."""
_LISTS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "verifier_function": ("names", (str,)),
    "verifier_weight": ("numbers", (int, float)),
}
_LAYERS = r"\d{1,6}( *, *\d{1,6})*", "whole numbers with commas between them"
_SHARES = r"[\d.]{1,9}( *, *[\d.]{1,9})*", "shares with commas between them, such as 100,0,0"
_FORMS = {"num_layer_list": _LAYERS, "noop_layers": _LAYERS, "split": _SHARES}
"""Keys whose values need a special format, as a pattern with its description."""


@dataclass(frozen=True, kw_only=True)
class TheirRun:
    """Contents of a MindSpeed-RL file and of the model files that it names."""

    given: Mapping[str, Any]
    """Value of each key, such as `rl_config.clip_ratio`; `model.NAME.key` for a model file. Dashes
    are replaced by underscores, keys with null are absent."""
    models: Mapping[str, str]
    """Model name of each section that names one."""
    were_texts: frozenset[str]
    """Keys whose number was written in quotes."""
    nulls: tuple[str, ...]
    """Keys that are null."""

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained."""
        return bool(self.value("rl_config.adv_estimator", "group_norm") == "gae")

    @property
    def stage(self) -> str:
        """Training program without the prefix `ray_`: grpo, dapo or ppo."""
        by_estimator = "ppo" if self.has_critic else "grpo"
        return str(self.actor.value("stage", f"ray_{by_estimator}")).removeprefix("ray_")

    @property
    def release(self) -> str:
        """MindSpeed-RL releases that know all keys of the file."""
        return looks_like(map(of_any_role, [*self.given, *self.nulls]))

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or MindSpeed-RL's default if the file does not set it."""
        return self.given.get(key, DEFAULTS.get(key, default))

    @property
    def actor(self) -> "TheirModel":
        """The settings of the actor."""
        return TheirModel(run=self, role="actor")

    @property
    def learners(self) -> list["TheirModel"]:
        """The settings of the models that are trained."""
        critic = TheirModel(run=self, role="critic")
        return [self.actor, critic] if self.has_critic else [self.actor]


@dataclass(frozen=True, kw_only=True)
class TheirModel:
    """One model of a file; if several sections set a key, the most specific one wins."""

    run: TheirRun
    role: Learner

    @property
    def section(self) -> str:
        """Name of its own section, the same in MindSpeed-RL and mindrl."""
        return f"{self.role}_config"

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return bool(self.value("num_experts"))

    def place(self, key: str) -> str:
        """Return the full name of the key that sets a value."""
        name = self.run.models.get(self.section, self.run.models.get("megatron_training"))
        places = [f"{self.section}.{key}", f"megatron_training.{key}", f"model.{name}.{key}"]
        return next((place for place in places if place in self.run.given), places[0])

    def given(self, key: str, default: Any = None) -> Any:
        """Return the value of a key if the file sets it, else `default`."""
        return self.run.given.get(self.place(key), default)

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or MindSpeed-RL's default if the file does not set it."""
        return self.given(key, DEFAULTS.get(f"role.{key}", default))


def releases_of(key: str) -> range:
    """Return the indices in `RELEASES` that have a key: `rl_config.clip_ratio`, or `role.key`."""
    return KEYS.get(key, range(NEWEST + 1))


def looks_like(keys: Iterable[str]) -> str:
    """Return the releases that have all given keys: `2.0`, `2.1 to 2.2`, `2.3 or later`."""
    known = list(keys)
    newest = max(known, key=lambda key: releases_of(key).start, default="")
    oldest = min(known, key=lambda key: releases_of(key).stop, default="")
    first, last = releases_of(newest).start, releases_of(oldest).stop - 1
    if first > last:
        return (
            f"of mixed releases: {oldest.partition('.')[2]} was last in {RELEASES[last]}, "
            f"{newest.partition('.')[2]} is new in {RELEASES[first]}"
        )
    if first == last:
        return RELEASES[first]
    return f"{RELEASES[first]} {'or later' if last == NEWEST else f'to {RELEASES[last]}'}"


def their_run(
    sections: Mapping[str, Any], model_files: Mapping[str, Mapping[str, Any]]
) -> TheirRun:
    """Return the contents of a file without its `defaults` list; model files are keyed by name.

    Raises:
        ConfigError: A section is not a mapping, a value has the wrong type, or MindSpeed-RL does
            not know a key; all unknown keys are listed, each with the closest known one.
    """
    flat = dict(_flat(sections))
    naming = [f"{section}.model" for section in _ROLE_SECTIONS]
    models = {key.split(".")[0]: str(flat.pop(key)) for key in [*flat] if key in naming}
    for section, name in models.items():
        if name not in model_files:
            there = ", ".join(model_files) or "none"
            raise ConfigError(f"{section}.model={name} is in no model file; available: {there}")
        flat |= {f"model.{name}.{_key(key)}": value for key, value in model_files[name].items()}
    if unknown := [key for key, value in flat.items() if not _is_known(key, value)]:
        raise ConfigError("\n".join(_unknown(key) for key in unknown))
    read = {key: _unquoted(key, value) for key, value in flat.items()}
    given = {key: value for key, value in read.items() if value is not None}
    needs = {key: _need(key.rpartition(".")[2], value) for key, value in given.items()}
    if wrong := [f"{key}={given[key]!r} must be {need}" for key, need in needs.items() if need]:
        raise ConfigError("\n".join(wrong))
    texts = frozenset(key for key, value in given.items() if type(value) is not type(flat[key]))
    nulls = tuple(key for key, value in flat.items() if value is None)
    return TheirRun(given=given, models=models, were_texts=texts, nulls=nulls)


def of_any_role(key: str) -> str:
    """Return `role.key` for a key of any model section; other keys are returned unchanged."""
    section, _, name = key.partition(".")
    if section == "model":
        name = name.partition(".")[2]
    return f"role.{name}" if section in (*_ROLE_SECTIONS, "model") else key


def numbers(value: Any) -> list[int]:
    """Return the integers of `7,8,8,8`, of a list, or of one number."""
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    return [int(part) for part in (parts if isinstance(parts, list | tuple) else [parts])]


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{path}.{_key(name)}" if path else _key(name)
        if isinstance(value, Mapping):
            yield from _flat(value, key)
        elif not path and value is not None:
            raise ConfigError(f"{key}={value!r} must be a section with keys")
        elif path:
            yield key, value


def _key(name: object) -> str:
    """Return a key with underscores: MindSpeed-RL reads `min-lr` as `min_lr`."""
    return str(name).replace("-", "_")


def _is_known(key: str, value: Any) -> bool:
    if (name := of_any_role(key)) != key:
        return name in KEYS
    # A null resource section replaces all keys in it.
    return key in DOTTED or (value is None and any(each.startswith(f"{key}.") for each in DOTTED))


def _unknown(key: str) -> str:
    section, _, name = key.partition(".")
    if section == "model":
        section, _, name = name.partition(".")
        section = f"model file {section}"
    elif section not in _SECTIONS and not name.startswith("integrated"):
        return f"{key}: unknown section {section}; sections are {', '.join(_SECTIONS)}"
    of_role = section in _ROLE_SECTIONS or section.startswith("model file")
    known = {f"{section}.{each}" for each in OF_ROLE} if of_role else DOTTED
    near = difflib.get_close_matches(f"{section}.{name}", sorted(known), n=1, cutoff=0.0)[0]
    elsewhere = [each for each in sorted(DOTTED) if each.endswith(f".{name}")]
    elsewhere += [f"megatron_training.{name}"] if name in OF_ROLE else []
    return f"{section}.{name} is not a key of MindSpeed-RL; the nearest is {[*elsewhere, near][0]}"


def _need(name: str, value: Any) -> str:
    """Return a description of the value that is needed; empty if the value is valid."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) for each in parts):
        return "text, a number, true, false or a list of those"
    if name in _COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        return "a whole number from 1"
    if name in _LIMITS and (isinstance(value, bool) or not isinstance(value, int)):
        return "a whole number"
    if name in _LISTS:
        what, kinds = _LISTS[name]
        right = isinstance(value, list) and value and all(isinstance(v, kinds) for v in value)
        return "" if right else f"a list of {what}"
    if name in _FORMS:
        form, what = _FORMS[name]
        return "" if re.fullmatch(form, ",".join(map(str, parts)).strip()) else what
    return ""


def _unquoted(key: str, value: Any) -> Any:
    """Convert a quoted number to a number, unless its key takes text."""
    text = value.strip() if isinstance(value, str) else ""
    if key.rpartition(".")[2] in _TEXTS or not _NUMBER.fullmatch(text):
        return value
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
