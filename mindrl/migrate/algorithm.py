"""Import rules of MindSpeed-RL for the algorithm: batch, loss, rewards, unsupported features."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.errors import ConfigError
from mindrl.migrate.file import TheirRun
from mindrl.migrate.mapped import Mapped, default, same

_PROGRAMS = {"grpo": "train-grpo", "dapo": "train-grpo", "ppo": "train-ppo"}
_OURS = {"math_17k_acc": "math_verify", "acc_for_ppo": "math_verify"}
_OURS |= {name: name for name in ("base_acc", "math_verify_reward", "acc_for_dapo")}
"""MindSpeed-RL verifiers, and the mindrl reward that computes the same score."""
_OTHER_SCORE: Mapping[str, str] = {
    "retool_reward": "1 or -1 for the box in the last 100 characters, and tool calls",
    "acc": "1, -0.5 or -1, by the answer and its box",
    "format": "the form of the text",
    "strict_format": "the form of the text",
    "step": "steps of reasoning",
}
_DEVICES = (
    "the roles that train share their devices here, and left out they do; the rollout alone can "
    "have its own: rl_config.use_integrated_worker=false with rl_config.rollout_resource.num_npus"
)
_CONSTANT = "the KL coefficient is constant here; left out, it stays at init_kl_coef"
_PARTS: tuple[tuple[str, Any, str], ...] = (
    ("rule_reward", True, "a reward model is reward_config here: write that section"),
    ("multi_turn_enable", False, "no tools here; left out, a response is one turn"),
    ("is_multimodal", False, "no model with images is trained here"),
    ("use_integrated_worker", True, _DEVICES),
    ("kl_ctrl_type", "fixed", _CONSTANT),
    ("reference_resource.num_npus", None, _DEVICES),
    ("reward_resource.num_npus", None, _DEVICES),
)
"""Keys of `rl_config`, the value that is supported, and the note for any other value."""


def algorithm_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the keys of the algorithm."""
    place = theirs.actor.place("stage")
    if theirs.stage not in _PROGRAMS:
        raise ConfigError(f"{place}={theirs.stage}: read are ray_grpo, ray_dapo and ray_ppo")
    yield Mapped(place, "derived", note=f"run it with mindrl {_PROGRAMS[theirs.stage]}")
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
        note = "prompts per round there; here as many as are likely needed, at most those of a step"
        yield Mapped(place, "ignored", note=note)
        prompts = trained
    elif prompts is not None:
        yield Mapped(place, "honoured", {ours: prompts}, "counts prompts, as there")
    mini = "rl_config.mini_batch_size"
    size = theirs.value(mini, 1)
    if prompts is not None and size > prompts:
        note = f"{size} there, more than the {prompts} prompts of a step: one update a step"
        yield Mapped(mini, "derived", {mini: prompts}, note)
    elif mini in theirs.given:
        note = "counts prompts; times n_samples_per_prompt gives the sequences of an update"
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
    function = _OURS.get(theirs.value(metric, "acc"))
    names = theirs.value("rl_config.verifier_function", ["base_acc"])
    if function in [_OURS.get(name) for name in names]:
        yield Mapped(metric, "renamed", {metric: function}, "the reward of ours")
    else:
        note = f"{theirs.value(metric, 'acc')}: no reward of the run here; the sum of them decides"
        yield Mapped(metric, "derived", {metric: None}, note)
    batches = theirs.value(most, 1)
    if batches <= 0:
        yield Mapped(most, "derived", {most: 0}, "no limit there; here every prompt of the data")
    else:
        note = (
            f"{batches} times {drawn} prompts there, in units of the {trained} of a step "
            "here; after that, groups without a signal fill the step, where theirs ends "
            "the run"
        )
        yield Mapped(most, "derived", {most: -(-batches * drawn // trained)}, note)


def _loss(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for ratio clipping and for the weight of a token in the loss."""
    enabled = "rl_config.clip_higher_enable"
    if theirs.stage == "dapo":
        yield from same(theirs, "rl_config.token_level_loss")
    if theirs.stage == "dapo" and theirs.given.get(enabled):
        yield Mapped(enabled, "derived", note="replaced by clip_ratio_low and clip_ratio_high")
        yield from same(theirs, "rl_config.clip_ratio_low")
        yield from same(theirs, "rl_config.clip_ratio_high")
    else:
        yield from same(theirs, "rl_config.clip_ratio")


def _divergence(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the KL term: DAPO has none, PPO has one only in the reward."""
    weight, kind, in_reward = (
        f"rl_config.{key}" for key in ("init_kl_coef", "kl_penalty", "use_kl_in_reward")
    )
    without = "DAPO has no KL term there" if theirs.stage == "dapo" else ""
    if not without and theirs.has_critic and not theirs.given.get(in_reward):
        without = "PPO has no KL term there without use_kl_in_reward"
    if without:
        yield Mapped(weight, "derived", {weight: 0.0}, f"{without}: no reference")
        return
    yield from same(theirs, weight)
    found = theirs.value(kind)
    if kind not in theirs.given and theirs.given.get(in_reward):
        # The mindrl default here is k1.
        yield default(kind, kind, "low_var_kl")
    elif found in (None, "kl", "abs", "mse", "low_var_kl"):
        yield from same(theirs, kind)
    else:
        note = f"{found}: kl, abs, mse and low_var_kl are there; left out: low_var_kl"
        yield Mapped(kind, "refused", note=note)
    if theirs.has_critic:
        yield from same(theirs, in_reward)
    folder = "rl_config.integrated_mode_config.ref_model_load_path"
    if folder in theirs.given and theirs.value(weight):
        note = (
            f"{theirs.value(folder)} there, in Megatron's format; give ref_config.load a folder in "
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
        there = f"no verifier of MindSpeed-RL, which skips it; it has {', '.join(known)}"
        yield Mapped(names_key, "refused", sets, f"{', '.join(unknown)}: {there}")
    elif other:
        way = f"write it as a function of your own, or leave it out for {', '.join(ours)}"
        yield Mapped(names_key, "refused", sets, f"{'; '.join(other)}: {way}")
    else:
        kept = names == list(ours)
        note = "equality of answers is math-verify's"
        yield Mapped(names_key, "honoured" if kept else "renamed", sets, note)
    if weights_key in theirs.given:
        yield Mapped(weights_key, "honoured", note=f"with {names_key}")


def _partial(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the partial rollout entry: MindSpeed-RL cuts by length, mindrl by whole groups."""
    key = "rl_config.partial_rollout_max_split"
    splits = theirs.value(key, 1)
    if splits > 1:
        sets = {"rl_config.partial_rollout": True, "rl_config.max_staleness": splits - 1}
        note = (
            f"a response is generated in up to {splits} parts of a fixed length there; "
            f"here a step ends when its groups are complete, within {splits} steps"
        )
        yield Mapped(key, "renamed", sets, note)


def _critic_devices(theirs: TheirRun) -> Iterator[Mapped]:
    key = "rl_config.critic_resource.num_npus"
    if not theirs.has_critic or key not in theirs.given:
        return
    if theirs.given[key] == theirs.value("rl_config.actor_resource.num_npus"):
        yield Mapped(key, "derived", note="the critic shares all devices of the run")
    else:
        note = f"{theirs.given[key]}: the critic shares all devices here; left out, it does"
        yield Mapped(key, "refused", note=note)
