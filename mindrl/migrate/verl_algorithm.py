"""Import rules of verl for advantages, the policy loss, the KL term and dynamic sampling. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.config.rl import ACCURACY
from mindrl.migrate.mapped import SAME_MEANING, Kind, Mapped
from mindrl.migrate.verl_keys import ACTOR, DEFAULTS, NAMES, OMITTED

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
"""Losses for which verl ignores `loss_agg_mode`: they are a mean over sequences."""
_LOSS_DEFAULTS = {"kl_cov": {"kl_cov_ratio": 2e-4, "ppo_kl_coef": 0.1}}
"""verl's defaults of the options of a loss that differ from mindrl's."""
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
_NUMBER = r"\d+\.?\d*|\.\d+"
_BOUNDS = re.compile(rf"(?:({_NUMBER})_)?({_NUMBER})")
_OF_LOSS = tuple(f"{ACTOR}.kl_loss_{name}" for name in ("coef", "type"))
_OF_REWARD = (
    *("algorithm.kl_penalty", "algorithm.kl_ctrl.type"),
    *(f"algorithm.kl_ctrl.{name}" for name in ("kl_coef", "horizon", "target_kl")),
)
_KINDS = {"kl", "k1", "k2", "k3", "mse", "abs", "low_var_kl"}


def algorithm_of_verl(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the keys of the algorithm."""
    for rule in (_advantage, _loss, _divergence, _groups, _correction):
        yield from rule(theirs)


def clip_bounds(given: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for omitted clip bounds; verl reads `clip_ratio` only for a null bound."""
    both, value = f"{ACTOR}.clip_ratio", given.get(f"{ACTOR}.clip_ratio")
    bounds = [f"{both}_{side}" for side in ("low", "high")]
    nulls = [key for key in bounds if given.get(key, both) is None]
    for key in bounds:
        if key in nulls:
            sets = {NAMES[key]: 0.2 if value is None else value}
            yield Mapped(key, "derived", sets, f"null: the value of {both}")
        elif key not in given:
            yield Mapped(key, "derived", {NAMES[key]: 0.2}, OMITTED)
    if value is not None and nulls:
        yield Mapped(both, "derived", note=f"the value of {' and '.join(nulls)}")
    elif value is not None:
        note = (
            "verl reads it only if clip_ratio_low or clip_ratio_high is null; their default is 0.2"
        )
        yield Mapped(both, "ignored", note=note)


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


def _loss(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key, ours = f"{ACTOR}.policy_loss.loss_mode", "rl_config.policy_loss"
    mode = theirs.get(key, "vanilla")
    if mode in _LOSSES:
        yield Mapped(key, "derived", {ours: _LOSSES[mode]}, f"was {mode}")
        for name, default in _LOSS_DEFAULTS.get(mode, {}).items():
            if (option := f"{ACTOR}.policy_loss.{name}") not in theirs:
                yield Mapped(option, "derived", {NAMES[option]: default}, OMITTED)
    else:
        yield Mapped(key, "refused", note=f"{mode}: write your own loss function")
    yield _aggregation(theirs, mode)


def _aggregation(theirs: Mapping[str, Any], loss: str) -> Mapped:
    """Return the entry for the weights of the tokens in a loss."""
    key, ours = f"{ACTOR}.loss_agg_mode", "rl_config.loss_aggregation"
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
    in_loss, in_reward = f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"
    loss, reward = theirs.get(in_loss, False), theirs.get(in_reward, False)
    if loss and reward:
        yield Mapped(
            in_loss, "refused", note=f"mindrl has one KL term; set only this or {in_reward}"
        )
        return
    weight, kind = f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"
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
    unused = (*(() if reward else _OF_REWARD), *(() if loss else _OF_LOSS))
    for key in (each for each in unused if each in theirs and each != weight):
        place = in_reward if key in _OF_REWARD else in_loss
        yield Mapped(key, "ignored", note=f"no effect without {place}")
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
        by = ACCURACY if theirs[metric] == "acc" else None
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
    elif theirs.get("algorithm.filter_groups.enable"):
        note = f"{OMITTED}: no limit; mindrl stops after every prompt of the data"
        yield Mapped(most, "derived", {"rl_config.filter_groups_max_batches": 0}, note)
    if drawn in theirs and theirs.get("algorithm.filter_groups.enable"):
        note = "prompts per generation round; mindrl generates for as many as are likely needed"
        yield Mapped(drawn, "ignored", note=note)
    elif drawn in theirs:
        sets = {NAMES["data.train_batch_size"]: at_a_time}
        note = "without filter_groups.enable verl trains on all prompts that it generates for"
        yield Mapped(drawn, "derived", sets, note)


def _correction(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    place, ours = "algorithm.rollout_correction", "rl_config.rollout_correction"
    key, level = f"{place}.rollout_is", theirs.get(f"{place}.rollout_is")
    if level in ("token", "sequence"):
        yield Mapped(key, "renamed", {f"{ours}.level": level}, SAME_MEANING)
        yield from _bounds(theirs, f"{place}.rollout_is_threshold", ours)
    elif level is not None:
        yield Mapped(key, "refused", note=f"{level}: use token or sequence; if dropped, off")
    else:
        note = "not in the file; off in verl by default"
        yield Mapped(key, "derived", {f"{ours}.level": "off"}, note)


def _bounds(theirs: Mapping[str, Any], key: str, ours: str) -> Iterator[Mapped]:
    """Yield the entry for the bounds of a weight: `2.0` truncates, `0.5_4.0` masks both sides."""
    if key not in theirs:
        return
    found = _BOUNDS.fullmatch(str(theirs[key]).strip())
    if found is None:
        note = f"{theirs[key]}: use a number, or two as in 0.5_4.0; if dropped, it is 2.0"
        yield Mapped(key, "refused", note=note)
        return
    least, most = found.groups()
    sets: dict[str, Any] = {f"{ours}.max_weight": float(most)}
    if least is None:
        yield Mapped(key, "renamed", sets, SAME_MEANING)
        return
    sets |= {f"{ours}.min_weight": float(least), f"{ours}.beyond": "mask"}
    yield Mapped(key, "derived", sets, "a token with a weight out of these bounds has no effect")
