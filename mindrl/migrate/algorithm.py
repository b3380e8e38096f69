"""Import rules of MindSpeed-RL for the algorithm: batch, loss, rewards, unsupported features."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.errors import ConfigError
from mindrl.migrate.file import TheirRun
from mindrl.migrate.mapped import SAME_MEANING, Mapped, default, same

_STAGES = ("grpo", "dapo", "ppo")
_OURS = {"math_17k_acc": "math_verify", "acc_for_ppo": "math_verify"}
_OURS |= {name: name for name in ("base_acc", "math_verify_reward", "acc_for_dapo")}
"""MindSpeed-RL verifiers, and the mindrl reward that computes the same score."""
_OTHER_SCORE: Mapping[str, str] = {
    "retool_reward": "1 or -1 for the boxed answer in the last 100 characters, and tool calls",
    "acc": "1, -0.5 or -1, depending on the answer and its box",
    "format": "the format of the text",
    "strict_format": "the format of the text",
    "step": "reasoning steps",
}
_DEVICES = (
    "in mindrl all models share the devices of the run; only the rollout can have its own: "
    "rl_config.use_integrated_worker=false with rl_config.rollout_resource.num_npus"
)
_CONSTANT = "mindrl has only a constant KL coefficient; if dropped, it is init_kl_coef"
_PARTS: tuple[tuple[str, Any, str], ...] = (
    ("rule_reward", True, "mindrl configures a reward model in the section reward_config: add it"),
    (
        "multi_turn_enable",
        False,
        "mindrl has tools in environment_config; if dropped, a response is one turn",
    ),
    ("is_multimodal", False, "mindrl reads pictures of rows with archon: or fsdp:"),
    ("use_integrated_worker", True, _DEVICES),
    ("kl_ctrl_type", "fixed", _CONSTANT),
    ("reference_resource.num_npus", None, _DEVICES),
    ("reward_resource.num_npus", None, _DEVICES),
)
"""Keys of `rl_config`, the value that is supported, and the note for any other value."""


def algorithm_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the keys of the algorithm."""
    place = theirs.actor.place("stage")
    if theirs.stage not in _STAGES:
        raise ConfigError(
            f"{place}={theirs.stage} must be ray_grpo, ray_dapo, ray_ppo, dpo, orm or sft"
        )
    yield Mapped(place, "derived", note="run it with mindrl train")
    yield from _batch(theirs)
    yield from _loss(theirs)
    yield from _divergence(theirs)
    yield from _rewards(theirs)
    if theirs.given.get("rl_config.overlong_buffer_enable"):
        # DAPO's reward in MindSpeed-RL, but all stages read the keys.
        for end in ("_enable", "", "_penalty_factor"):
            yield from same(theirs, f"rl_config.overlong_buffer{end}")
    yield from _critic_devices(theirs)
    yield from _partial(theirs)
    for name, legal, note in _PARTS:
        key = f"rl_config.{name}"
        if theirs.given.get(key, legal) != legal:
            yield Mapped(key, "refused", note=note)
        elif name == "use_integrated_worker":
            yield from same(theirs, key)


def _batch(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for prompts per step and per update; both sides count prompts."""
    actor, ours = theirs.actor, "megatron_training.global_batch_size"
    place, prompts = actor.place("global_batch_size"), actor.value("global_batch_size")
    if theirs.stage == "dapo" and theirs.given.get("rl_config.filter_groups_enable"):
        trained = theirs.value("rl_config.filter_groups_train_batch_size", 1)
        yield from _filtered(theirs, prompts or 1, trained)
        note = (
            "prompts per generation round; mindrl generates for as many as are likely needed, "
            "at most those of a step"
        )
        yield Mapped(place, "ignored", note=note)
        prompts = trained
    elif prompts is not None:
        yield Mapped(place, "honoured", {ours: prompts}, "counts prompts, as in MindSpeed-RL")
    mini = "rl_config.mini_batch_size"
    size = theirs.value(mini, 1)
    if prompts is not None and size > prompts:
        note = f"was {size}, more than the {prompts} prompts of a step: one update per step"
        yield Mapped(mini, "derived", {mini: prompts}, note)
    elif mini in theirs.given:
        note = "counts prompts; an update has n_samples_per_prompt sequences for each"
        yield Mapped(mini, "honoured", {mini: size}, note)
    else:
        yield default(mini, mini, size)


def _filtered(theirs: TheirRun, drawn: int, trained: int) -> Iterator[Mapped]:
    """Yield the entries for dynamic sampling, which replaces groups of equal scores.

    Args:
        theirs: The file.
        drawn: Prompts that MindSpeed-RL draws at a time.
        trained: Prompts that a step trains on.
    """
    enable, size, metric, most = (
        f"rl_config.filter_groups_{end}"
        for end in ("enable", "train_batch_size", "metric", "max_batches")
    )
    yield Mapped(enable, "honoured", {enable: True})
    yield Mapped(size, "renamed", {"megatron_training.global_batch_size": trained})
    function = _OURS.get(str(theirs.value(metric, "acc")))
    names = theirs.value("rl_config.verifier_function", ["base_acc"])
    if function in [_OURS.get(name) for name in names]:
        yield Mapped(metric, "renamed", {metric: function}, "mindrl's name of this reward")
    else:
        note = f"{theirs.value(metric, 'acc')} is not a reward of this run; their sum is used"
        yield Mapped(metric, "derived", {metric: None}, note)
    batches = theirs.value(most, 1)
    if batches <= 0:
        yield Mapped(
            most, "derived", {most: 0}, "no limit; mindrl stops after every prompt of the data"
        )
    else:
        note = (
            f"was {batches} times {drawn} prompts; mindrl counts batches of {trained}. At the "
            "limit mindrl fills the step with groups of equal rewards; MindSpeed-RL ends the run"
        )
        yield Mapped(most, "derived", {most: -(-batches * drawn // trained)}, note)


def _loss(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for ratio clipping and for the weight of a token in the loss."""
    enabled = "rl_config.clip_higher_enable"
    yield _aggregation(theirs)
    if theirs.stage == "dapo" and theirs.given.get(enabled):
        yield Mapped(enabled, "derived", note="replaced by clip_ratio_low and clip_ratio_high")
        yield from same(theirs, "rl_config.clip_ratio_low")
        yield from same(theirs, "rl_config.clip_ratio_high")
    else:
        yield from same(theirs, "rl_config.clip_ratio")


def _aggregation(theirs: TheirRun) -> Mapped:
    """Return the entry for the weight of a token: MindSpeed-RL averages each micro-batch alone."""
    key, ours = "rl_config.token_level_loss", "rl_config.loss_aggregation"
    if theirs.stage == "dapo" and theirs.given.get(key) is False:
        return Mapped(key, "renamed", {ours: "sequence_mean"}, SAME_MEANING)
    is_one = theirs.actor.given("micro_batch_size", 1) == 1
    if is_one and not theirs.given.get("rl_config.use_dynamic_bsz"):
        note = "MindSpeed-RL averages the tokens of a micro-batch, which is one sequence here"
        return Mapped(key, "derived", {ours: "sequence_mean"}, note)
    note = (
        "MindSpeed-RL averages the tokens of each micro-batch, then the micro-batches, so their "
        "size changes the loss; mindrl averages all tokens of an update"
    )
    return Mapped(key, "derived", {ours: "token_mean"}, note)


def _divergence(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the KL term: DAPO has none, PPO has one only in the reward."""
    weight, kind, in_reward = (
        f"rl_config.{key}" for key in ("init_kl_coef", "kl_penalty", "use_kl_in_reward")
    )
    without = "DAPO has no KL term in MindSpeed-RL" if theirs.stage == "dapo" else ""
    if not without and theirs.has_critic and not theirs.given.get(in_reward):
        without = "without use_kl_in_reward PPO has no KL term in MindSpeed-RL"
    if without:
        yield Mapped(weight, "derived", {weight: 0.0}, f"{without}: no reference model is needed")
        return
    yield from same(theirs, weight)
    found = theirs.value(kind)
    if kind not in theirs.given and theirs.given.get(in_reward):
        # The mindrl default here is k1.
        yield default(kind, kind, "low_var_kl")
    elif found in (None, "kl", "abs", "mse", "low_var_kl"):
        yield from same(theirs, kind)
    else:
        note = f"{found}: use kl, abs, mse or low_var_kl; if dropped, it is low_var_kl"
        yield Mapped(kind, "refused", note=note)
    if theirs.has_critic:
        yield from same(theirs, in_reward)
    folder = "rl_config.integrated_mode_config.ref_model_load_path"
    if folder in theirs.given and theirs.value(weight):
        note = (
            f"{theirs.value(folder)} has Megatron's format; set ref_config.load to a folder in "
            "Hugging Face format, or the reference is the actor's initial model"
        )
        yield Mapped(folder, "open", note=note)


def _rewards(theirs: TheirRun) -> Iterator[Mapped]:
    names_key, weights_key = "rl_config.verifier_function", "rl_config.verifier_weight"
    names = theirs.value(names_key, ["base_acc"])
    weights = theirs.value(weights_key, [1.0] * len(names))
    ours: dict[str, float] = {}
    for name, weight in zip(names, weights, strict=False):
        if name in _OURS:
            ours[_OURS[name]] = ours.get(_OURS[name], 0.0) + float(weight)
    ours = ours or {"math_verify": 1.0}
    sets = {names_key: list(ours), weights_key: list(ours.values())}
    known = [*_OURS, *_OTHER_SCORE]
    other = [f"{name} scores {_OTHER_SCORE[name]}" for name in names if name in _OTHER_SCORE]
    if unknown := [name for name in names if name not in known]:
        there = f"not a verifier of MindSpeed-RL, which skips it; use {', '.join(known)}"
        yield Mapped(names_key, "refused", sets, f"{', '.join(unknown)}: {there}")
    elif other:
        way = f"write your own reward function; if dropped, the rewards are {', '.join(ours)}"
        yield Mapped(names_key, "refused", sets, f"{'; '.join(other)}: {way}")
    else:
        kept = names == list(ours)
        note = "answers are compared by math-verify"
        yield Mapped(names_key, "honoured" if kept else "renamed", sets, note)
    if weights_key in theirs.given:
        yield Mapped(weights_key, "honoured", note=f"see {names_key}")


def _partial(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the partial rollout entry: MindSpeed-RL cuts by length, mindrl by whole groups."""
    key = "rl_config.partial_rollout_max_split"
    splits = theirs.value(key, 1)
    if splits > 1:
        sets = {"rl_config.partial_rollout": True, "rl_config.max_staleness": splits - 1}
        note = (
            f"MindSpeed-RL generates a response in up to {splits} parts of a fixed length; in "
            "mindrl a step ends when its groups are complete, and a response takes at most "
            f"{splits} steps"
        )
        yield Mapped(key, "renamed", sets, note)


def _critic_devices(theirs: TheirRun) -> Iterator[Mapped]:
    key = "rl_config.critic_resource.num_npus"
    if not theirs.has_critic or key not in theirs.given:
        return
    if theirs.given[key] == theirs.value("rl_config.actor_resource.num_npus"):
        yield Mapped(key, "derived", note="the critic shares all devices of the run")
    else:
        note = f"{theirs.given[key]}: in mindrl the critic shares all devices of the run"
        yield Mapped(key, "refused", note=note)
