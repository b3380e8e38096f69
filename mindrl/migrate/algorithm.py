"""Rules of a MindSpeed-RL import for the algorithm: batch, loss, rewards, parts not there."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.errors import ConfigError
from mindrl.migrate.file import TheirRun
from mindrl.migrate.mapped import Kind, Mapped, default, ignored, same

_PROGRAMS = {"grpo": "train_grpo", "dapo": "train_grpo", "ppo": "train_ppo"}
_OURS: Mapping[str, str] = {
    "math_17k_acc": "math_verify",
    "acc_for_ppo": "math_verify",
    "base_acc": "base_acc",
    "math_verify_reward": "math_verify_reward",
    "acc_for_dapo": "acc_for_dapo",
}
"""Verifiers of theirs, and the reward of ours that scores the same."""
_OTHER_SCORE: Mapping[str, str] = {
    "retool_reward": "1 or -1 for the box in the last 100 characters, and tool calls",
    "acc": "1, -0.5 or -1, by the answer and its box",
    "format": "the form of the text",
    "strict_format": "the form of the text",
    "step": "steps of reasoning",
}
_DEVICES = "all roles share all devices here; left out, they do"
_ADAPTERS = "there are no adapters here; left out, the reference is a model of its own"
_FINISHED = "each response is finished in its own step here; left out, it is"
_CONSTANT = "the KL coefficient is constant here; left out, it stays at init_kl_coef"
_PARTS: tuple[tuple[str, Any, str], ...] = (
    ("rl_config.rule_reward", True, "a reward model is reward_config here: write that section"),
    ("rl_config.multi_turn_enable", False, "no tools here; left out, a response is one turn"),
    ("rl_config.share_backbone", False, _ADAPTERS),
    ("rl_config.is_multimodal", False, "no model with images is trained here"),
    ("rl_config.partial_rollout_max_split", 1, _FINISHED),
    ("rl_config.use_integrated_worker", True, _DEVICES),
    ("rl_config.kl_ctrl_type", "fixed", _CONSTANT),
    ("rl_config.reference_resource.num_npus", None, _DEVICES),
    ("rl_config.reward_resource.num_npus", None, _DEVICES),
)
"""Keys whose other values ask for a part that is not there."""


def algorithm_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Say what becomes of the keys of the algorithm."""
    yield _program(theirs)
    yield from _batch(theirs)
    yield from _loss(theirs)
    yield from _divergence(theirs)
    yield from _rewards(theirs)
    yield from _length_penalty(theirs)
    yield from _critic_devices(theirs)
    for key, legal, note in _PARTS:
        found = theirs.given.get(key, legal)
        if found != legal:
            yield Mapped(key=key, kind="refused", note=note)
        elif key == "rl_config.use_integrated_worker" and key in theirs.given:
            yield from same(theirs, key)


def _program(theirs: TheirRun) -> Mapped:
    place = theirs.place("actor", "stage")
    stage = theirs.stage
    if stage not in _PROGRAMS:
        raise ConfigError(f"{place}={stage}: read are ray_grpo, ray_dapo and ray_ppo")
    return Mapped(key=place, kind="derived", note=f"run it with cli/{_PROGRAMS[stage]}.py")


def _batch(theirs: TheirRun) -> Iterator[Mapped]:
    """Prompts per step and per update: both count prompts, there and here."""
    place = theirs.place("actor", "global_batch_size")
    enabled, kept = "rl_config.filter_groups_enable", "rl_config.filter_groups_train_batch_size"
    ours = "megatron_training.global_batch_size"
    prompts = theirs.role("actor", "global_batch_size")
    if theirs.stage == "dapo" and theirs.given.get(enabled):
        trained = theirs.value(kept, 1)
        note = (
            "groups of equal scores are not replaced here: their advantages are 0; left out, a "
            f"step draws and trains {trained} prompts, its filter_groups_train_batch_size"
        )
        yield Mapped(key=enabled, kind="refused", sets={ours: trained}, note=note)
        yield ignored(place, f"{prompts} prompts are drawn at a time to be filtered, see {enabled}")
        prompts = trained
    elif prompts is not None:
        note = "counts prompts, as there"
        yield Mapped(key=place, kind="honoured", sets={ours: prompts}, note=note)
    mini = "rl_config.mini_batch_size"
    size = theirs.value(mini, 1)
    if prompts is not None and size > prompts:
        note = f"{size} there, more than the {prompts} prompts of a step: one update a step"
        yield Mapped(key=mini, kind="derived", sets={mini: prompts}, note=note)
    elif mini in theirs.given:
        note = "counts prompts; times n_samples_per_prompt gives the sequences of an update"
        yield Mapped(key=mini, kind="honoured", sets={mini: size}, note=note)
    else:
        yield default(mini, mini, size)


def _loss(theirs: TheirRun) -> Iterator[Mapped]:
    """Clipping and the weight of a token."""
    clip, enabled = "rl_config.clip_ratio", "rl_config.clip_higher_enable"
    weigh = "rl_config.token_level_loss"
    if theirs.stage != "dapo":
        yield from same(theirs, clip)
        return
    yield from same(theirs, weigh)
    if not theirs.given.get(enabled):
        yield from same(theirs, clip)
        return
    yield Mapped(key=enabled, kind="derived", note="clip_ratio_low and clip_ratio_high say it")
    for side in ("rl_config.clip_ratio_low", "rl_config.clip_ratio_high"):
        if side in theirs.given:
            yield from same(theirs, side)
        else:
            yield default(side, side, 0.1)


def _length_penalty(theirs: TheirRun) -> Iterator[Mapped]:
    """What a response loses for its length; the reward of DAPO, but read by all stages."""
    buffer = "rl_config.overlong_buffer"
    keys = (f"{buffer}_enable", buffer, f"{buffer}_penalty_factor")
    if theirs.given.get(keys[0]):
        for key in keys:
            yield from same(theirs, key)


def _divergence(theirs: TheirRun) -> Iterator[Mapped]:
    """The KL to the reference: DAPO has none, and PPO only in the reward."""
    weight, kind, in_reward = (
        f"rl_config.{key}" for key in ("init_kl_coef", "kl_penalty", "use_kl_in_reward")
    )
    without = theirs.stage == "dapo" or (theirs.has_critic and not theirs.given.get(in_reward))
    if without:
        note = (
            "DAPO has no KL term there"
            if theirs.stage == "dapo"
            else "PPO has no KL term there without use_kl_in_reward"
        )
        yield Mapped(key=weight, kind="derived", sets={weight: 0.0}, note=f"{note}: no reference")
        return
    if weight in theirs.given:
        yield from same(theirs, weight)
    else:
        yield default(weight, weight, 0.01)
    if theirs.value(kind) in (None, "kl", "abs", "mse", "low_var_kl"):
        yield from same(theirs, kind)
    else:
        note = f"{theirs.value(kind)}: kl, abs, mse and low_var_kl are there; left out: low_var_kl"
        yield Mapped(key=kind, kind="refused", note=note)
    if theirs.has_critic:
        yield from same(theirs, in_reward)
    folder = "rl_config.integrated_mode_config.ref_model_load_path"
    if folder in theirs.given and theirs.value(weight, 0.01):
        note = (
            f"{theirs.value(folder)} there, in Megatron's format; give ref_config.load a folder in "
            "Hugging Face format, or the reference is the actor's initial model"
        )
        yield Mapped(key=folder, kind="open", note=note)


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
    unknown = [name for name in names if name not in (*_OURS, *_OTHER_SCORE)]
    other = [name for name in names if name in _OTHER_SCORE]
    if unknown:
        known = ", ".join([*_OURS, *_OTHER_SCORE])
        note = f"{', '.join(unknown)}: no verifier of MindSpeed-RL, which skips it; it has {known}"
        yield Mapped(key=names_key, kind="refused", sets=sets, note=note)
    elif other:
        scores = "; ".join(f"{name} scores {_OTHER_SCORE[name]}" for name in other)
        note = (
            f"{scores}: write it as a function of your own, or leave it out for {', '.join(ours)}"
        )
        yield Mapped(key=names_key, kind="refused", sets=sets, note=note)
    else:
        kind: Kind = "honoured" if names == list(ours) else "renamed"
        note = "equality of answers is math-verify's"
        yield Mapped(key=names_key, kind=kind, sets=sets, note=note)
    if weights_key in theirs.given:
        yield Mapped(key=weights_key, kind="honoured", note=f"with {names_key}")


def _critic_devices(theirs: TheirRun) -> Iterator[Mapped]:
    key, all_devices = "rl_config.critic_resource.num_npus", "rl_config.actor_resource.num_npus"
    if not theirs.has_critic or key not in theirs.given:
        return
    if theirs.given[key] == theirs.value(all_devices):
        yield Mapped(key=key, kind="derived", note="the critic shares all devices of the run")
    else:
        note = f"{theirs.given[key]}: the critic shares all devices here; left out, it does"
        yield Mapped(key=key, kind="refused", note=note)
