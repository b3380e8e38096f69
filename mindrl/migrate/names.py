"""Names of mindrl keys in other trainers: verl, TRL, OpenRLHF, slime, MindSpeed-RL. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindrl.config.load import field_names, same_name
from mindrl.config.text import dotted, nested, spelled_value
from mindrl.errors import ConfigError
from mindrl.migrate.file import their_run
from mindrl.migrate.keys import DOTTED, KEYS
from mindrl.migrate.mapped import MISSING, Import, Mapped
from mindrl.migrate.run import import_run
from mindrl.migrate.verl import import_verl
from mindrl.migrate.verl_keys import LAYOUT, NAMES, SECTIONS

_SAMPLES, _TOKENS = (
    "rl_config.n_samples_per_prompt",
    "generate_config.sampling_config.max_tokens",
)
_ADVANTAGE = "rl_config.adv_estimator"
_OF_COMMAND_LINES: Mapping[str, str] = {
    "eps_clip": "rl_config.clip_ratio",
    "prompt_data": "megatron_training.data_path",
    "input_key": "megatron_training.prompt_column",
    "label_key": "megatron_training.answer_column",
    "advantage_estimator": _ADVANTAGE,
}
"""Names that OpenRLHF and slime share."""
OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "TRL": {
        "num_generations": _SAMPLES,
        "max_completion_length": _TOKENS,
        "beta": "rl_config.init_kl_coef",
        "epsilon": "rl_config.clip_ratio",
        "epsilon_high": "rl_config.clip_ratio_high",
        "loss_type": "rl_config.loss_aggregation",
        "scale_rewards": _ADVANTAGE,
        "num_iterations": "rl_config.epochs",
        "learning_rate": "actor_config.lr",
        "max_steps": "megatron_training.train_iters",
        "mask_truncated_completions": "rl_config.overlong_filter_enable",
        "max_grad_norm": "actor_config.clip_grad",
        "adam_epsilon": "actor_config.adam_eps",
        "lr_scheduler_type": "actor_config.lr_decay_style",
        "warmup_ratio": "actor_config.lr_warmup_fraction",
        "warmup_steps": "actor_config.lr_warmup_fraction",
        "gradient_checkpointing": "actor_config.recompute_granularity",
        "per_device_train_batch_size": "actor_config.micro_batch_size",
        "model_name_or_path": "actor_config.load",
        "dataset_name": "megatron_training.data_path",
        "reward_funcs": "rl_config.verifier_function",
        "reward_weights": "rl_config.verifier_weight",
        "save_steps": "megatron_training.save_interval",
        "save_total_limit": "megatron_training.keep_last",
        "resume_from_checkpoint": "megatron_training.resume",
        "eval_steps": "rl_config.test_freq",
        "output_dir": "hydra.run.dir",
        "run_name": "rl_config.tracking.experiment",
        "report_to": "rl_config.tracking.trackers",
        "vllm_gpu_memory_utilization": "generate_config.gpu_memory_utilization",
        "vllm_tensor_parallel_size": "generate_config.infer_tensor_parallel_size",
        "num_train_epochs": "megatron_training.train_iters",
        "gradient_accumulation_steps": "rl_config.mini_batch_size",
        "shuffle_dataset": "megatron_training.no_shuffle",
        "ref_model": "ref_config.load",
        "ref_model_sync_steps": "rl_config.ref_update_interval",
        "precompute_ref_log_probs": "preference_config.reference_file",
        "max_length": "megatron_training.seq_length",
        "eval_dataset": "megatron_training.test_data_path",
        "processing_class": "megatron_training.tokenizer_name_or_path",
        "lmbda": _ADVANTAGE,
        "teacher_model": "teacher_config.load",
        "teacher_model_server_url": "teacher_config.url",
        "loss_top_k": "teacher_config.candidates",
    },
    "OpenRLHF": {
        **_OF_COMMAND_LINES,
        "actor_learning_rate": "actor_config.lr",
        "critic_learning_rate": "critic_config.lr",
        "rollout_batch_size": "megatron_training.global_batch_size",
        "micro_train_batch_size": "actor_config.micro_batch_size",
        "pretrain": "actor_config.load",
        "critic_pretrain": "critic_config.load",
        "reward_pretrain": "reward_config.load",
        "prompt_max_len": "rl_config.max_prompt_length",
        "generate_max_len": _TOKENS,
        "lambd": "rl_config.lam",
        "entropy_loss_coef": "rl_config.entropy_coeff",
        "value_clip": "rl_config.cliprange_value",
        "max_norm": "actor_config.clip_grad",
    },
    "slime": {
        **_OF_COMMAND_LINES,
        "num_rollout": "megatron_training.train_iters",
        "rollout_max_response_len": _TOKENS,
        "rollout_max_prompt_len": "rl_config.max_prompt_length",
        "rollout_temperature": "generate_config.sampling_config.temperature",
        "rollout_top_p": "generate_config.sampling_config.top_p",
        "rollout_num_gpus_per_engine": "generate_config.infer_tensor_parallel_size",
        "eps_clip_high": "rl_config.clip_ratio_high",
        "kl_loss_coef": "rl_config.init_kl_coef",
        "entropy_coef": "rl_config.entropy_coeff",
        "hf_checkpoint": "actor_config.load",
        "eval_interval": "rl_config.test_freq",
        "max_tokens_per_gpu": "rl_config.max_packing_token_size",
        "custom_rm_path": "rl_config.verifier_function",
    },
}
"""Trainers, and their names for keys that have no section."""
_WITHOUT_EQUIVALENT: Mapping[str, Mapping[str, str]] = {
    "TRL": {
        "logging_steps": "metrics of each step are recorded",
        "use_vllm": "rollouts always use an engine, generate_config.backend",
    }
}
"""Trainers, and why a name has no mindrl key."""
_OUR_SECTIONS = frozenset(field_names(()))
_VALUES: Mapping[str, Mapping[str, object]] = {
    "scale_rewards": {
        **dict.fromkeys(("false", "none"), "group_mean"),
        **dict.fromkeys(("true", "group"), "group_norm"),
    },
    "loss_type": {
        **dict.fromkeys(("dapo", "bnpo"), "token_mean"),
        "grpo": "sequence_mean",
        "dr_grpo": "sequence_sum",
    },
    "lr_scheduler_type": {
        **{style: style for style in ("constant", "linear", "cosine")},
        "constant_with_warmup": "constant",
    },
    "gradient_checkpointing": {"true": "full", "false": None},
    "shuffle_dataset": {"true": False, "false": True},
    "resume_from_checkpoint": {"true": "auto", "false": "never"},
    # TRL counts optimizer steps, passes over the data and batches of a device; mindrl rollouts and
    # rows. Its warm-up is a number of steps, here a fraction of them.
    "max_steps": {},
    "warmup_steps": {},
    "num_train_epochs": {},
    "gradient_accumulation_steps": {},
    # A file instead of true.
    "precompute_ref_log_probs": {},
    "lmbda": dict.fromkeys(("1", "1.0"), "teacher"),
    "advantage_estimator": {
        "gae": "gae",
        "rloo": "rloo",
        "grpo": "group_norm",
        "group_norm": "group_norm",
        "dr_grpo": "group_mean",
        "reinforce_baseline": "reinforce_plus_plus_baseline",
        "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
        "reinforce_plus_plus": "reinforce_plus_plus",
    },
}
"""Names whose values are spelled differently; the user must choose a value that is not listed."""
_LISTS = ("rl_config.verifier_function", "rl_config.verifier_weight", "rl_config.tracking.trackers")
_ALONE = {
    "actor_rollout_ref.rollout.dtype": "generate_config.dtype",
    "actor_rollout_ref.actor.clip_ratio": "rl_config.clip_ratio",
    "actor_rollout_ref.actor.kl_loss_coef": "rl_config.init_kl_coef",
    "actor_rollout_ref.actor.kl_loss_type": "rl_config.kl_penalty",
    "algorithm.kl_ctrl.kl_coef": "rl_config.init_kl_coef",
    "algorithm.kl_penalty": "rl_config.kl_penalty",
    "trainer.resume_from_path": "megatron_training.resume",
    "actor_rollout_ref.actor.optim.clip_grad": "actor_config.clip_grad",
    **{f"actor_rollout_ref.ref.megatron.{key}": f"ref_config.{key}" for key in LAYOUT},
}
"""verl keys whose rules need other keys, with their meaning if given alone."""


@dataclass(frozen=True, kw_only=True)
class OtherName:
    """A key in another trainer's spelling, and the mindrl keys that it corresponds to."""

    trainer: str
    key: str
    sets: Mapping[str, object] = field(default_factory=dict)
    """mindrl keys with their values; MISSING if the user must choose the value."""
    note: str = ""
    """Why there is no corresponding mindrl key."""

    def __str__(self) -> str:
        """Return the trainer's name and the override to write."""
        if not self.sets:
            return f"it is {self.trainer}'s name and has no equivalent in mindrl: {self.note}"
        ours = " ".join(
            key if value is MISSING else f"{key}={spelled_value(value)}"
            for key, value in self.sets.items()
        )
        return f"it is {self.trainer}'s name; in mindrl: {ours}"


def other_name(key: str, value: object = None) -> OtherName | None:
    """Return what another trainer's key corresponds to; None if no known trainer has the key.

    `value` may be None if it is not known; it may also be a section.
    """
    if isinstance(value, Mapping):
        return _section(key, value)
    section, _, last = key.rpartition(".")
    name = last.replace("-", "_")
    may_be_theirs = not section or section in _OUR_SECTIONS
    for trainer, reasons in _WITHOUT_EQUIVALENT.items():
        if name in reasons and may_be_theirs:
            return OtherName(trainer=trainer, key=key, note=reasons[name])
    for trainer, names in OTHER_NAMES.items():
        if name in names and may_be_theirs:
            ours = names[name]
            if section and (here := ours.rpartition(".")[2]) in field_names(section.split(".")):
                ours = f"{section}.{here}"
            return OtherName(trainer=trainer, key=key, sets={ours: _value(name, ours, value)})
    if found := _of_verl(key, value):
        return found
    return None if same_name(last) else _of_mindspeed_rl(key, value)


def _section(key: str, value: Mapping[Any, Any]) -> OtherName | None:
    """Return the result for the first key of a section that another trainer has."""
    leaves = dotted({str(name): each for name, each in value.items()}, f"{key}.")
    return next((found for each in leaves if (found := other_name(*each))), None)


def _value(name: str, ours: str, value: object) -> object:
    if name in _VALUES:
        return _VALUES[name].get(str(value).lower(), MISSING)
    if value is None:
        return MISSING
    return [value] if ours in _LISTS and not isinstance(value, list | tuple) else value


def _of_verl(key: str, value: object) -> OtherName | None:
    """Apply the verl import rules to this key alone, which is enough for most keys."""
    whole = key if key.partition(".")[0] in SECTIONS else _WHOLE_NAMES.get(key)
    if whole is None:
        return None
    direct = _ALONE.get(whole) or NAMES.get(whole)
    if direct is not None and direct.endswith(f".{key}"):
        return None
    if direct is not None:
        sets = {direct: MISSING if value is None else value}
        return OtherName(trainer="verl", key=key, sets=sets)
    try:
        entries = _entries(import_verl({whole: value}), whole)
    except ConfigError as error:
        return OtherName(trainer="verl", key=key, note=str(error))
    found = _from("verl", key, entries)
    has_our_name = any(ours.endswith(f".{key}") for ours in found.sets)
    return None if has_our_name and value in found.sets.values() else found


def _of_mindspeed_rl(key: str, value: object) -> OtherName | None:
    if key not in DOTTED and key.replace(key.partition(".")[0], "role", 1) not in KEYS:
        return None
    try:
        imported = import_run(their_run(nested({key: value}), {}))
    except ConfigError:
        return None
    return _from("MindSpeed-RL", key, _entries(imported, key))


def _entries(imported: Import, key: str) -> list[Mapped]:
    return [each for each in imported.mapped if each.key == key]


def _from(trainer: str, key: str, entries: list[Mapped]) -> OtherName:
    sets = {ours: value for each in entries for ours, value in each.sets.items()}
    notes = " ".join(
        each.note for each in entries if each.kind in ("ignored", "refused", "derived")
    )
    return OtherName(
        trainer=trainer, key=key, sets=sets, note=notes or "no mindrl key has this meaning"
    )


def _whole_names() -> Iterator[tuple[str, str]]:
    """Yield (last part, key) of the verl keys whose last part is unique."""
    keys = {*NAMES, *_ALONE, "algorithm.adv_estimator", "trainer.device", "trainer.nnodes"}
    keys |= {
        f"actor_rollout_ref.actor.{name}" for name in ("policy_loss.loss_mode", "loss_agg_mode")
    }
    ends = [key.rpartition(".")[2] for key in keys]
    for key in keys:
        if ends.count(name := key.rpartition(".")[2]) == 1:
            yield name, key


_WHOLE_NAMES = dict(_whole_names())
