"""Import of the keys of a verl run; every key gets an entry. Pure.

Based on verl's configuration files of January 2026 (commit b178a3c) and its DAPO recipe.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindrl.migrate.mapped import SAME_MEANING, Import, Kind, Mapped
from mindrl.migrate.trackers import verl_trackers
from mindrl.migrate.verl_adapters import verl_adapters
from mindrl.migrate.verl_run import check_values, run_rules

SECTIONS = frozenset({"actor_rollout_ref", "algorithm", "data", "trainer", "critic"})
"""Any of these sections identifies a verl file."""
_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
_SAMPLING = "generate_config.sampling_config"
NAMES: Mapping[str, str] = {
    "actor_rollout_ref.model.path": "actor_config.load",
    "actor_rollout_ref.model.trust_remote_code": "generate_config.trust_remote_code",
    f"{_ACTOR}.ppo_mini_batch_size": "rl_config.mini_batch_size",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": "actor_config.micro_batch_size",
    f"{_ACTOR}.ppo_epochs": "rl_config.epochs",
    f"{_ACTOR}.shuffle": "rl_config.shuffle_mini_batch",
    f"{_ACTOR}.use_dynamic_bsz": "rl_config.use_dynamic_bsz",
    f"{_ACTOR}.clip_ratio": "rl_config.clip_ratio",
    f"{_ACTOR}.clip_ratio_low": "rl_config.clip_ratio_low",
    f"{_ACTOR}.clip_ratio_high": "rl_config.clip_ratio_high",
    f"{_ACTOR}.clip_ratio_c": "rl_config.dual_clip_ratio",
    f"{_ACTOR}.tau_pos": "rl_config.sapo_tau_positive",
    f"{_ACTOR}.tau_neg": "rl_config.sapo_tau_negative",
    f"{_ACTOR}.policy_loss.clip_cov_ratio": "rl_config.clip_cov_ratio",
    f"{_ACTOR}.policy_loss.clip_cov_lb": "rl_config.clip_cov_lb",
    f"{_ACTOR}.policy_loss.clip_cov_ub": "rl_config.clip_cov_ub",
    f"{_ACTOR}.policy_loss.kl_cov_ratio": "rl_config.kl_cov_ratio",
    f"{_ACTOR}.policy_loss.ppo_kl_coef": "rl_config.kl_cov_coef",
    f"{_ACTOR}.entropy_coeff": "rl_config.entropy_coeff",
    f"{_ACTOR}.optim.lr": "actor_config.lr",
    f"{_ACTOR}.optim.lr_warmup_steps_ratio": "actor_config.lr_warmup_fraction",
    f"{_ACTOR}.optim.weight_decay": "actor_config.weight_decay",
    f"{_ACTOR}.grad_clip": "actor_config.clip_grad",
    f"{_ACTOR}.ulysses_sequence_parallel_size": "actor_config.context_parallel_size",
    f"{_REF}.log_prob_micro_batch_size_per_gpu": "rl_config.ref_forward_micro_batch_size",
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": "rl_config.actor_forward_micro_batch_size",
    f"{_ROLLOUT}.n": "rl_config.n_samples_per_prompt",
    f"{_ROLLOUT}.tensor_model_parallel_size": "generate_config.infer_tensor_parallel_size",
    f"{_ROLLOUT}.pipeline_model_parallel_size": "generate_config.infer_pipeline_parallel_size",
    f"{_ROLLOUT}.expert_parallel_size": "generate_config.infer_expert_parallel_size",
    **{f"{_ROLLOUT}.{key}": f"{_SAMPLING}.{key}" for key in ("temperature", "top_p", "top_k")},
    **{
        f"{_ROLLOUT}.{key}": f"generate_config.{key}"
        for key in (
            *("dtype", "gpu_memory_utilization", "enforce_eager", "enable_prefix_caching"),
            *("max_num_batched_tokens", "max_num_seqs"),
        )
    },
    **{
        f"{_ACTOR}.megatron.{key}": f"actor_config.{key}"
        for key in (
            *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            *("context_parallel_size", "expert_model_parallel_size"),
            "expert_tensor_parallel_size",
        )
    },
    f"{_ACTOR}.freeze_vision_tower": "actor_config.freeze_vision_tower",
    "algorithm.gamma": "rl_config.gamma",
    "algorithm.lam": "rl_config.lam",
    "algorithm.filter_groups.enable": "rl_config.filter_groups_enable",
    "data.train_batch_size": "megatron_training.global_batch_size",
    "data.max_prompt_length": "rl_config.max_prompt_length",
    "data.max_response_length": f"{_SAMPLING}.max_tokens",
    "data.prompt_key": "megatron_training.prompt_column",
    "data.reward_fn_key": "data_config.source_column",
    "data.seed": "megatron_training.seed",
    "trainer.total_training_steps": "megatron_training.train_iters",
    "trainer.n_gpus_per_node": "rl_config.actor_resource.npus_per_node",
    "trainer.max_actor_ckpt_to_keep": "megatron_training.keep_last",
    **{
        f"reward_model.{place}.{theirs}": f"rl_config.overlong_buffer{ours}"
        for place in ("overlong_buffer", "reward_kwargs.overlong_buffer_cfg")
        for theirs, ours in (
            ("enable", "_enable"),
            ("len", ""),
            ("penalty_factor", "_penalty_factor"),
        )
    },
}
"""Keys with the same meaning under another name."""
_CRITIC: Mapping[str, str] = {
    "critic.model.path": "critic_config.load",
    "critic.optim.lr": "critic_config.lr",
    "critic.optim.weight_decay": "critic_config.weight_decay",
    "critic.optim.lr_warmup_steps_ratio": "critic_config.lr_warmup_fraction",
    "critic.grad_clip": "critic_config.clip_grad",
    "critic.ppo_micro_batch_size_per_gpu": "critic_config.micro_batch_size",
    "critic.cliprange_value": "rl_config.cliprange_value",
    "trainer.critic_warmup": "rl_config.critic_warmup",
}
"""The same, for runs with `algorithm.adv_estimator: gae`."""
DEFAULTS: Mapping[str, Any] = {
    f"{_ACTOR}.ppo_mini_batch_size": 256,
    f"{_ACTOR}.clip_ratio_c": 3.0,
    "critic.optim.lr": 1e-5,
    f"{_ROLLOUT}.n": 1,
    f"{_ROLLOUT}.tensor_model_parallel_size": 2,
    f"{_ROLLOUT}.max_num_batched_tokens": 8192,
    f"{_ROLLOUT}.max_num_seqs": 256,
    "algorithm.lam": 1.0,
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "data.prompt_key": "prompt",
    "trainer.n_gpus_per_node": 8,
}
"""verl defaults that differ from mindrl's; they are written out for omitted keys."""
_ESTIMATORS = {
    **{name: name for name in ("gae", "rloo", "opo", "remax", "reinforce_plus_plus")},
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "rloo_vectorized": "rloo",
}
_LOSSES = {
    "vanilla": "dual_clip",
    "geo_mean": "gmpo",
    "gpg": "plain",
    **{name: name for name in ("gspo", "cispo", "sapo", "clip_cov", "kl_cov")},
}
_OF_SEQUENCES = ("gspo", "sapo", "geo_mean")
"""Losses that are a mean over sequences in verl, whatever `loss_agg_mode` is."""
_LOSS_DEFAULTS = {"kl_cov": {"kl_cov_ratio": 2e-4, "ppo_kl_coef": 0.1}}
"""verl's defaults of the options of a loss that differ from mindrl's."""
_OMITTED = "not in the file; verl's default"
_WEIGHTS = {
    "token-mean": ("token_mean", ""),
    "seq-mean-token-mean": ("sequence_mean", ""),
    "seq-mean-token-sum": (
        "sequence_sum",
        "mindrl also divides by max_tokens: the loss is smaller by that factor",
    ),
    "seq-mean-token-sum-norm": (
        "sequence_sum",
        "mindrl also divides by the number of sequences of the update",
    ),
}
_KINDS = {"kl", "k1", "k2", "k3", "mse", "abs", "low_var_kl"}
_IGNORED: Mapping[str, Sequence[str]] = {
    "used only by verl; mindrl writes metrics to the run folder": (
        *("trainer.project_name", "trainer.experiment_name"),
        *("trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.log_val_generations"),
    ),
    "mindrl trains with Megatron and offload_* on; it does not affect results": (
        *(f"{role}.fsdp_config." for role in (_ACTOR, _REF)),
        *(f"{role}.strategy" for role in (_ACTOR, _REF)),
        *(f"{role}.use_torch_compile" for role in (_ACTOR, _REF)),
        *(f"{_ACTOR}.megatron.{part}_offload" for part in ("param", "grad", "optimizer")),
        f"{_REF}.megatron.param_offload",
    ),
    "mindrl does the same without a key": (
        *("actor_rollout_ref.hybrid_engine", "trainer.balance_batch", "trainer.resume_mode"),
        f"{_ROLLOUT}.calculate_log_probs",
        *(f"{_ROLLOUT}.enable_chunked_prefill", f"{_ROLLOUT}.free_cache_engine"),
        *(f"{_ROLLOUT}.load_format", f"{_ROLLOUT}.mode"),
    ),
}
"""By reason, the keys or key prefixes that change no result."""
_FIXED: Mapping[str, tuple[Any, str]] = {
    "data.truncation": ("error", "rl_config.overlong_prompt_policy ends the run, or drops prompts"),
    "trainer.val_before_train": (True, "mindrl also evaluates before the first step"),
    f"{_ROLLOUT}.do_sample": (True, "mindrl samples all responses that it trains on"),
}
"""By key, the only value that mindrl has, and a note for the other ones."""


def import_verl(given: Mapping[str, Any], rows: int | None = None) -> Import:
    """Return the mapping of each key of a verl run.

    Args:
        given: Dotted keys with their values; None has the same meaning as an omitted key.
        rows: Rows of the training data; None if unknown.

    Raises:
        ConfigError: A value does not have the type that its key has in verl.
    """
    theirs = {key: value for key, value in given.items() if value is not None}
    check_values(theirs)
    has_critic = theirs.get("algorithm.adv_estimator", "gae") == "gae"
    found = [*_names(theirs, {**NAMES, **(_CRITIC if has_critic else {})})]
    for rule in (_advantage, _loss, _divergence, _groups, _correction, _fixed):
        found += rule(theirs)
    found += [*run_rules(theirs, rows), *verl_trackers(theirs), *verl_adapters(theirs)]
    accounted = {each.key for each in found}
    found += [_left(key, given[key], has_critic) for key in given if key not in accounted]
    return Import(mapped=found)


def _names(theirs: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Mapped]:
    """Yield the entries for renamed keys, and for verl defaults of omitted keys."""
    for key, ours in names.items():
        if key in theirs:
            yield Mapped(key, "renamed", {ours: theirs[key]}, SAME_MEANING)
        elif key in DEFAULTS:
            yield Mapped(key, "derived", {ours: DEFAULTS[key]}, _OMITTED)


def _left(key: str, value: Any, has_critic: bool) -> Mapped:
    """Return the entry for a key that no rule handled: the reason, or that it is not understood."""
    if value is None:
        return Mapped(key, "ignored", note="null: the same as without the key")
    if not has_critic and key.startswith(("critic.", "trainer.critic_")):
        return Mapped(key, "ignored", note="only adv_estimator=gae trains a critic")
    for reason, places in _IGNORED.items():
        if any(key == place or (place.endswith(".") and key.startswith(place)) for place in places):
            return Mapped(key, "ignored", note=reason)
    if "profiler" in key:
        return Mapped(key, "ignored", note="to profile a run in mindrl, set profiler_config")
    if key.endswith("._target_"):
        return Mapped(key, "ignored", note="a class of verl")
    return Mapped(
        key,
        "open",
        note=f"was {value!r}; unknown to mindrl: look for a mindrl key with this meaning",
    )


def _advantage(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key, by_std = "algorithm.adv_estimator", "algorithm.norm_adv_by_std_in_grpo"
    ours, name, normed = "rl_config.adv_estimator", theirs.get(key, "gae"), theirs.get(by_std, True)
    kind: Kind = "renamed" if key in theirs else "derived"
    if name in ("grpo", "grpo_vectorized"):
        yield Mapped(
            key, kind, {ours: "group_norm" if normed else "group_mean"}, f"depends on {by_std}"
        )
    elif name == "grpo_passk" and not normed:
        yield Mapped(key, kind, {ours: "pass_at_k"}, SAME_MEANING)
    elif name in _ESTIMATORS:
        yield Mapped(key, kind, {ours: _ESTIMATORS[name]}, SAME_MEANING)
    else:
        yield Mapped(key, "refused", note=f"{name}: write your own advantage function")
    if by_std in theirs:
        yield Mapped(by_std, "derived", note=f"part of {ours}, with {key}")


def _fixed(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for values that mindrl has in every run."""
    for key, (same, note) in _FIXED.items():
        if theirs.get(key) == same:
            yield Mapped(key, "ignored", note="mindrl does the same without a key")
        elif key in theirs:
            yield Mapped(key, "open", note=f"was {theirs[key]!r}: {note}")


def _loss(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key, ours = f"{_ACTOR}.policy_loss.loss_mode", "rl_config.policy_loss"
    mode = theirs.get(key, "vanilla")
    if mode in _LOSSES:
        yield Mapped(key, "derived", {ours: _LOSSES[mode]}, f"was {mode}")
        for name, default in _LOSS_DEFAULTS.get(mode, {}).items():
            if (option := f"{_ACTOR}.policy_loss.{name}") not in theirs:
                yield Mapped(option, "derived", {NAMES[option]: default}, _OMITTED)
    else:
        yield Mapped(key, "refused", note=f"{mode}: write your own loss function")
    yield _aggregation(theirs, mode)


def _aggregation(theirs: Mapping[str, Any], loss: str) -> Mapped:
    """Return the entry for the weights of the tokens in a loss."""
    key, ours = f"{_ACTOR}.loss_agg_mode", "rl_config.loss_aggregation"
    mode = theirs.get(key, "token-mean")
    if loss in _OF_SEQUENCES:
        note = f"in verl {loss} is a mean over sequences; only KL and entropy follow {mode}"
        return Mapped(key, "derived", {ours: "sequence_mean"}, note)
    if mode not in _WEIGHTS:
        return Mapped(key, "refused", note=f"{mode}: use {', '.join(_WEIGHTS)}")
    value, note = _WEIGHTS[mode]
    return Mapped(key, "derived" if note else "renamed", {ours: value}, note or SAME_MEANING)


def _divergence(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the KL term; mindrl has one, in the loss or in the reward."""
    in_loss, in_reward = f"{_ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"
    loss, reward = theirs.get(in_loss, False), theirs.get(in_reward, False)
    if loss and reward:
        yield Mapped(
            in_loss, "refused", note=f"mindrl has one KL term; set only this or {in_reward}"
        )
        return
    weight, kind = f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type"
    if reward:
        weight, kind = "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"
        if theirs.get("algorithm.kl_ctrl.type", "fixed") != "fixed":
            yield Mapped(
                "algorithm.kl_ctrl.type", "refused", note="mindrl has only a constant coefficient"
            )
    for key in {in_loss, in_reward} & theirs.keys():
        yield Mapped(key, "derived", note="replaced by rl_config.init_kl_coef and use_kl_in_reward")
    coefficient = theirs.get(weight, 0.001) if loss or reward else 0.0
    sets = {"rl_config.init_kl_coef": coefficient}
    yield Mapped(weight, "derived", sets, "0 if the run has no KL term")
    if not (loss or reward):
        return
    yield Mapped(in_reward, "derived", {"rl_config.use_kl_in_reward": reward}, SAME_MEANING)
    found = theirs.get(kind, "kl" if reward else "low_var_kl")
    if found in _KINDS:
        yield Mapped(kind, "renamed", {"rl_config.kl_penalty": found}, SAME_MEANING)
    else:
        yield Mapped(kind, "refused", note=f"{found}: use {', '.join(sorted(_KINDS))}")


def _groups(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the dynamic sampling entries; verl counts its limit in batches of `gen_batch_size`."""
    metric, most, drawn = (
        *(f"algorithm.filter_groups.{name}" for name in ("metric", "max_num_gen_batches")),
        "data.gen_batch_size",
    )
    if metric in theirs:
        by = "math_verify" if theirs[metric] == "acc" else None
        note = f"was {theirs[metric]}; null means the sum of the rewards"
        yield Mapped(metric, "derived", {"rl_config.filter_groups_metric": by}, note)
    trained = theirs.get("data.train_batch_size", DEFAULTS["data.train_batch_size"])
    at_a_time = theirs.get(drawn, trained)
    if most in theirs:
        batches = -(-max(theirs[most], 0) * at_a_time // trained)
        note = (
            f"was {theirs[most]} times {at_a_time} prompts; mindrl counts batches of {trained}; "
            "0 means no limit"
        )
        yield Mapped(most, "derived", {"rl_config.filter_groups_max_batches": batches}, note)
    if drawn in theirs and theirs.get("algorithm.filter_groups.enable"):
        note = "prompts per generation round; mindrl generates for as many as are likely needed"
        yield Mapped(drawn, "ignored", note=note)
    elif drawn in theirs:
        sets = {NAMES["data.train_batch_size"]: at_a_time}
        note = "without filter_groups.enable verl trains on all prompts that it generates for"
        yield Mapped(drawn, "derived", sets, note)


def _correction(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    place, ours = "algorithm.rollout_correction", "rl_config.rollout_correction"
    level, bound = theirs.get(f"{place}.rollout_is"), theirs.get(f"{place}.rollout_is_threshold")
    if level in ("token", "sequence"):
        yield Mapped(f"{place}.rollout_is", "renamed", {f"{ours}.level": level}, SAME_MEANING)
        if bound is not None:
            name = f"{place}.rollout_is_threshold"
            yield Mapped(name, "renamed", {f"{ours}.max_weight": bound}, SAME_MEANING)
    elif f"{place}.rollout_is" not in theirs:
        note = "not in the file; off in verl by default"
        yield Mapped(f"{place}.rollout_is", "derived", {f"{ours}.level": "off"}, note)
