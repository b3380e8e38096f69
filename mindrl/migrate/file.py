"""The keys and values of a MindSpeed-RL file, flat, each known by name."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindrl.errors import ConfigError
from mindrl.migrate.keys import DEFAULTS, DOTTED, OF_ROLE, WATCHED
from mindrl.migrate.releases import looks_like

Learner = Literal["actor", "critic"]

_ROLE_SECTIONS = ("megatron_training", "actor_config", "critic_config")
_SECTIONS = (*_ROLE_SECTIONS, "rl_config", "generate_config", "profiler_config", "msprobe_config")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_TEXTS = frozenset(
    {
        "split",
        "num_layer_list",
        "noop_layers",
        "load",
        "save",
        "data_path",
        "tokenizer_name_or_path",
        "prompt_type",
    }
)
"""Keys whose values stay text even where they look like a number."""
_COUNTS = frozenset(
    {
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "num_layers",
        "num_experts",
        "num_attention_heads",
        "num_query_groups",
        "global_batch_size",
        "mini_batch_size",
        "filter_groups_train_batch_size",
        "seq_length",
        "max_prompt_length",
        "max_tokens",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_packing_token_size",
        "actor_max_packing_token_size",
        "ref_max_packing_token_size",
        "update_max_packing_token_size",
        "infer_tensor_parallel_size",
        "infer_expert_parallel_size",
        "num_npus",
    }
)
"""Keys that rules calculate with."""
_LISTS: Mapping[str, tuple[type, ...]] = {
    "verifier_function": (str,),
    "verifier_weight": (int, float),
}
_PLAIN = (str, int, float)
_COUNT_LISTS = frozenset({"num_layer_list", "noop_layers"})
_COUNT_LIST = re.compile(r"\d{1,6}( *, *\d{1,6})*")
_SHARES = re.compile(r"[\d.]{1,9}( *, *[\d.]{1,9})*")


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
    nulls: frozenset[str]
    """Keys that are null."""

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained."""
        return bool(self.value("rl_config.adv_estimator", "group_norm") == "gae")

    @property
    def stage(self) -> str:
        """The program, without what all of them begin with: grpo, dapo, ppo."""
        by_estimator = "ppo" if self.has_critic else "grpo"
        return str(self.role("actor", "stage", f"ray_{by_estimator}")).removeprefix("ray_")

    @property
    def release(self) -> str:
        """The releases of MindSpeed-RL that have all keys of the file."""
        return looks_like(map(_of_any_role, [*self.given, *self.nulls]))

    def value(self, key: str, default: Any = None) -> Any:
        """Return what the file says of a key, else MindSpeed-RL's default."""
        return self.given.get(key, DEFAULTS.get(key, default))

    def place(self, role: Learner, key: str) -> str:
        """Return where the value of a role's key stands: the later section wins."""
        name = self.models.get(f"{role}_config", self.models.get("megatron_training"))
        places = [f"{role}_config.{key}", f"megatron_training.{key}", f"model.{name}.{key}"]
        return next((place for place in places if place in self.given), places[0])

    def role(self, role: Learner, key: str, default: Any = None) -> Any:
        """Return the value of a role's key, else MindSpeed-RL's default."""
        fallback = DEFAULTS.get(f"role.{key}", default)
        return self.given.get(self.place(role, key), fallback)


def their_run(
    sections: Mapping[str, Any], model_files: Mapping[str, Mapping[str, Any]]
) -> TheirRun:
    """Take a file apart.

    Args:
        sections: The file, without its `defaults` list.
        model_files: What the model files hold, by the name of the model.

    Raises:
        ConfigError: Keys that MindSpeed-RL does not know, all at once, each with the nearest one
            that it knows; or a section that is no mapping.
    """
    flat = dict(_flat(sections))
    models = {key.split(".")[0]: str(flat.pop(key)) for key in [*flat] if _names_a_model(key)}
    for section, name in models.items():
        if name not in model_files:
            there = ", ".join(model_files) or "none"
            raise ConfigError(f"{section}.model={name}: no model file has it; there are: {there}")
        flat |= {f"model.{name}.{_key(key)}": value for key, value in model_files[name].items()}
    if unknown := [key for key, value in flat.items() if not _is_known(key, value)]:
        raise ConfigError("\n".join(_unknown(key) for key in unknown))
    texts = {key for key, value in flat.items() if _is_number_in_quotes(key, value)}
    given = {
        key: _number(value) if key in texts else value
        for key, value in flat.items()
        if value is not None
    }
    if wrong := [each for key, value in given.items() if (each := _wrong_kind(key, value))]:
        raise ConfigError("\n".join(wrong))
    return TheirRun(
        given=given,
        models=models,
        were_texts=frozenset(texts),
        nulls=frozenset(key for key, value in flat.items() if value is None),
    )


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


def _names_a_model(key: str) -> bool:
    section, _, name = key.partition(".")
    return section in _ROLE_SECTIONS and name == "model"


def _is_known(key: str, value: Any) -> bool:
    section, _, name = key.partition(".")
    if section == "model":
        return name.partition(".")[2] in OF_ROLE
    # A resource that is null stands for all that it holds.
    whole = value is None and any(known.startswith(f"{key}.") for known in DOTTED)
    return name in OF_ROLE if section in _ROLE_SECTIONS else key in DOTTED or whole


def _of_any_role(key: str) -> str:
    """Name a key of a model whichever section it stands in."""
    section, _, name = key.partition(".")
    if section == "model":
        name = name.partition(".")[2]
    return f"role.{name}" if section in (*_ROLE_SECTIONS, "model") else key


def _unknown(key: str) -> str:
    section, _, name = key.partition(".")
    if section == "model":
        section, _, name = name.partition(".")
        section = f"model file {section}"
    elif section not in _SECTIONS and not name.startswith("integrated"):
        return f"{key}: {section} is no section that is read; those are {', '.join(_SECTIONS)}"
    known = {f"{section}.{each}" for each in OF_ROLE} if _is_of_role(section) else DOTTED
    near = difflib.get_close_matches(f"{section}.{name}", sorted(known), n=1, cutoff=0.0)[0]
    elsewhere = [each for each in sorted(DOTTED) if each.endswith(f".{name}")]
    elsewhere += [f"megatron_training.{name}"] if name in OF_ROLE else []
    return f"{section}.{name} is no key of MindSpeed-RL; the nearest is {[*elsewhere, near][0]}"


def _is_of_role(section: str) -> bool:
    return section in _ROLE_SECTIONS or section.startswith("model file")


def _wrong_kind(key: str, value: Any) -> str | None:
    """Say so where a value is none that rules can calculate with."""
    name = key.rpartition(".")[2]
    if not _is_list_of(value if isinstance(value, list) else [value], _PLAIN) and value != []:
        return f"{key}={value!r} must be text, a number, true, false or a list of those"
    if name in _COUNTS and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        return f"{key}={value!r} must be a whole number from 1"
    if name in _LISTS and not _is_list_of(value, _LISTS[name]):
        kinds = "names" if _LISTS[name] == (str,) else "numbers"
        return f"{key}={value!r} must be a list of {kinds}"
    if name in _COUNT_LISTS and not _COUNT_LIST.fullmatch(_joined(value)):
        return f"{key}={value!r} must be whole numbers with commas between them"
    if name == "split" and not _SHARES.fullmatch(_joined(value)):
        return f"{key}={value!r} must be shares with commas between them, such as 100,0,0"
    return None


def _is_list_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, kinds) for v in value)


def _joined(value: Any) -> str:
    """Spell a list as its text."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).strip()


def _is_number_in_quotes(key: str, value: Any) -> bool:
    name = key.rpartition(".")[2]
    return isinstance(value, str) and name not in _TEXTS and bool(_NUMBER.fullmatch(value.strip()))


def _number(text: str) -> int | float:
    stripped = text.strip()
    return int(stripped) if re.fullmatch(r"[-+]?\d+", stripped) else float(stripped)


def watched(key: str) -> bool:
    """Tell the keys of tools that watch a run."""
    return any(key.startswith(f"{section}.") for section in WATCHED)
