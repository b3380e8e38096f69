"""The keys and values of a MindSpeed-RL file, flat, each known by name."""

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
"""Keys whose values stay text even where they look like a number."""
_COUNTS = words("""
    tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size
    expert_model_parallel_size num_layers_per_virtual_pipeline_stage num_layers num_experts
    num_attention_heads num_query_groups global_batch_size mini_batch_size
    filter_groups_train_batch_size seq_length max_prompt_length max_tokens max_model_len
    max_num_seqs max_num_batched_tokens max_packing_token_size actor_max_packing_token_size
    ref_max_packing_token_size update_max_packing_token_size infer_tensor_parallel_size
    infer_expert_parallel_size num_npus profile_step_end lora_r
""")
"""Keys that rules calculate with."""
_LISTS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "verifier_function": ("names", (str,)),
    "verifier_weight": ("numbers", (int, float)),
}
_LAYERS = r"\d{1,6}( *, *\d{1,6})*", "whole numbers with commas between them"
_SHARES = r"[\d.]{1,9}( *, *[\d.]{1,9})*", "shares with commas between them, such as 100,0,0"
_FORMS = {"num_layer_list": _LAYERS, "noop_layers": _LAYERS, "split": _SHARES}
"""Keys whose values have a form of their own, and that form in words."""


@dataclass(frozen=True, kw_only=True)
class TheirRun:
    """What a MindSpeed-RL file says, with the model files that it names."""

    given: Mapping[str, Any]
    """Value of each key, such as `rl_config.clip_ratio`; `model.NAME.key` for a model file. Dashes
    are underscores, and what is null is as if left out."""
    models: Mapping[str, str]
    """Name of the model of each section that names one."""
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
        """The program, without what all of them begin with: grpo, dapo, ppo."""
        by_estimator = "ppo" if self.has_critic else "grpo"
        return str(self.actor.value("stage", f"ray_{by_estimator}")).removeprefix("ray_")

    @property
    def release(self) -> str:
        """The releases of MindSpeed-RL that have all keys of the file."""
        return looks_like(map(of_any_role, [*self.given, *self.nulls]))

    def value(self, key: str, default: Any = None) -> Any:
        """Return what the file says of a key, else MindSpeed-RL's default."""
        return self.given.get(key, DEFAULTS.get(key, default))

    @property
    def actor(self) -> "TheirModel":
        """What the file says of the actor."""
        return TheirModel(run=self, role="actor")

    @property
    def learners(self) -> list["TheirModel"]:
        """What it says of the models that are trained."""
        critic = TheirModel(run=self, role="critic")
        return [self.actor, critic] if self.has_critic else [self.actor]


@dataclass(frozen=True, kw_only=True)
class TheirModel:
    """One model of a file: its keys may stand in several sections, of which the later wins."""

    run: TheirRun
    role: Learner

    @property
    def section(self) -> str:
        """Its own section, there and here."""
        return f"{self.role}_config"

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return bool(self.value("num_experts"))

    def place(self, key: str) -> str:
        """Return where the value of a key stands."""
        name = self.run.models.get(self.section, self.run.models.get("megatron_training"))
        places = [f"{self.section}.{key}", f"megatron_training.{key}", f"model.{name}.{key}"]
        return next((place for place in places if place in self.run.given), places[0])

    def given(self, key: str, default: Any = None) -> Any:
        """Return what the file says of a key."""
        return self.run.given.get(self.place(key), default)

    def value(self, key: str, default: Any = None) -> Any:
        """Return what the file says of a key, else MindSpeed-RL's default."""
        return self.given(key, DEFAULTS.get(f"role.{key}", default))


def releases_of(key: str) -> range:
    """Return which of `RELEASES` have a key: `rl_config.clip_ratio`, or `role.key` of a model."""
    return KEYS.get(key, range(NEWEST + 1))


def looks_like(keys: Iterable[str]) -> str:
    """Say which releases have all of some keys: `2.0`, `2.1 to 2.2`, `2.3 or later`."""
    known = list(keys)
    newest = max(known, key=lambda key: releases_of(key).start, default="")
    oldest = min(known, key=lambda key: releases_of(key).stop, default="")
    first, last = releases_of(newest).start, releases_of(oldest).stop - 1
    if first > last:
        return (
            f"of no one release: {oldest.partition('.')[2]} went with {RELEASES[last]}, "
            f"{newest.partition('.')[2]} came with {RELEASES[first]}"
        )
    if first == last:
        return RELEASES[first]
    return f"{RELEASES[first]} {'or later' if last == NEWEST else f'to {RELEASES[last]}'}"


def their_run(
    sections: Mapping[str, Any], model_files: Mapping[str, Mapping[str, Any]]
) -> TheirRun:
    """Take a file without its `defaults` list apart, and model files by the names of the models.

    Raises:
        ConfigError: Keys that MindSpeed-RL does not know, all at once, each with the nearest one
            that it knows; or a section that is no mapping.
    """
    flat = dict(_flat(sections))
    naming = [f"{section}.model" for section in _ROLE_SECTIONS]
    models = {key.split(".")[0]: str(flat.pop(key)) for key in [*flat] if key in naming}
    for section, name in models.items():
        if name not in model_files:
            there = ", ".join(model_files) or "none"
            raise ConfigError(f"{section}.model={name}: no model file has it; there are: {there}")
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
    """Name a key of a model `role.key`, whichever section it stands in; others as they are."""
    section, _, name = key.partition(".")
    if section == "model":
        name = name.partition(".")[2]
    return f"role.{name}" if section in (*_ROLE_SECTIONS, "model") else key


def numbers(value: Any) -> list[int]:
    """Read `7,8,8,8`, a list, or one number."""
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
    """MindSpeed-RL reads `min-lr` as `min_lr`."""
    return str(name).replace("-", "_")


def _is_known(key: str, value: Any) -> bool:
    if (name := of_any_role(key)) != key:
        return name in KEYS
    # A resource that is null stands for all that it holds.
    return key in DOTTED or (value is None and any(each.startswith(f"{key}.") for each in DOTTED))


def _unknown(key: str) -> str:
    section, _, name = key.partition(".")
    if section == "model":
        section, _, name = name.partition(".")
        section = f"model file {section}"
    elif section not in _SECTIONS and not name.startswith("integrated"):
        return f"{key}: {section} is no section that is read; those are {', '.join(_SECTIONS)}"
    of_role = section in _ROLE_SECTIONS or section.startswith("model file")
    known = {f"{section}.{each}" for each in OF_ROLE} if of_role else DOTTED
    near = difflib.get_close_matches(f"{section}.{name}", sorted(known), n=1, cutoff=0.0)[0]
    elsewhere = [each for each in sorted(DOTTED) if each.endswith(f".{name}")]
    elsewhere += [f"megatron_training.{name}"] if name in OF_ROLE else []
    return f"{section}.{name} is no key of MindSpeed-RL; the nearest is {[*elsewhere, near][0]}"


def _need(name: str, value: Any) -> str:
    """Say what a value must be where it is none that rules can calculate with; else nothing."""
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) for each in parts):
        return "text, a number, true, false or a list of those"
    if name in _COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        return "a whole number from 1"
    if name in _LISTS:
        what, kinds = _LISTS[name]
        right = isinstance(value, list) and value and all(isinstance(v, kinds) for v in value)
        return "" if right else f"a list of {what}"
    if name in _FORMS:
        form, what = _FORMS[name]
        return "" if re.fullmatch(form, ",".join(map(str, parts)).strip()) else what
    return ""


def _unquoted(key: str, value: Any) -> Any:
    """Return the number that a value in quotes is, where it is one and its key takes numbers."""
    text = value.strip() if isinstance(value, str) else ""
    if key.rpartition(".")[2] in _TEXTS or not _NUMBER.fullmatch(text):
        return value
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
