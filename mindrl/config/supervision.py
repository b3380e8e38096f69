"""Configuration of supervised fine-tuning: no engine, no rewards, one answer per prompt."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, get_args

from mindrl.config.finding import Finding, broken, must_be_default
from mindrl.config.generate import SamplingConfig
from mindrl.config.halves import NO_ENGINE
from mindrl.config.preference import REWARD_FORMS, PreferenceConfig, PreferenceForm
from mindrl.config.rl import RLConfig
from mindrl.config.run import RunConfig

_LEARNS = "the run trains on the answers of the rows"
_LOSS = "the loss is that of the answers"
_NO_ROLLOUT = "no responses are generated"
_NO_REWARD = "nothing is rated"
_ALONE = {
    "n_samples_per_prompt": "rows have their answers",
    "epochs": "passes over the rows are sft_config.epochs, or follow from train_iters",
    "adv_estimator": "there are no advantages",
    "policy_loss": _LOSS,
    "policy_loss_options": _LOSS,
    "loss_aggregation": _LOSS,
    "token_level_loss": _LOSS,
    "entropy_coeff": _LOSS,
    "entropy_target": _LOSS,
    "critic_warmup": "there is no critic",
    "ref_update_interval": "the reference stays what it is",
    "use_kl_in_reward": _NO_REWARD,
    "init_kl_coef": "it weighs no reference in the loss",
    "shuffle_mini_batch": "rows are shuffled by data_config.order",
    "verifier_function": _NO_REWARD,
    "verifier_weight": _NO_REWARD,
    "filter_groups_enable": _NO_REWARD,
    "overlong_buffer_enable": _NO_REWARD,
    "overlong_filter_enable": _NO_REWARD,
    "partial_rollout": _NO_ROLLOUT,
    "step_order": _NO_ROLLOUT,
    "use_integrated_worker": _NO_ROLLOUT,
    "debug": _NO_ROLLOUT,
}
"""Keys of `rl_config` that contradict it, and why they have no effect."""
_OWN: dict[str, Any] = {
    "n_samples_per_prompt": 1,
    "verifier_function": (),
    "verifier_weight": (),
}
"""Replacements of some defaults."""


def supervised(config: RunConfig) -> RunConfig:
    """Return the configuration with supervised fine-tuning's values; other runs unchanged.

    Keys of the rollout are ignored. Contradicting keys are kept, and `sft_findings` reports them.
    """
    if not config.reads_answers:
        return config
    rl, longest, unset = config.rl_config, config.megatron_training.seq_length, _defaults()
    drawn = config.generate_config.sampling_config
    own = {key: value for key, value in _own(config).items() if getattr(rl, key) == unset[key]}
    return replace(
        config,
        rl_config=replace(
            rl,
            # A prompt may fill the trainer's sequence but for one token of the answer.
            max_prompt_length=max(1, longest - 1),
            **own,
        ),
        generate_config=replace(
            config.generate_config,
            **NO_ENGINE,
            kv_cache_mib=None,
            max_num_seqs=1,
            max_model_len=longest,
            max_num_batched_tokens=longest,
            sampling_config=SamplingConfig(
                max_tokens=1,
                stop_token_ids=drawn.stop_token_ids,
                # A teacher and the model are compared at it.
                temperature=1.0 if config.teacher_config is None else drawn.temperature,
            ),
        ),
    )


def sft_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield keys that contradict supervised fine-tuning."""
    if not config.reads_answers:
        return
    yield from _preference_findings(config)
    unset, own = _defaults(), _own(config)
    for key, why in _ALONE.items():
        value = getattr(config.rl_config, key)
        if value not in (unset[key], own.get(key, unset[key])):
            yield broken(f"rl_config.{key}", value, f": {_LEARNS}: {why}; remove it", unset[key])
    key, what = "sft_config.response_column", "megatron_training.chat_template=plain"
    if (
        config.megatron_training.takes_plain_text
        and config.value_of(key) is None
        and config.sft_config
    ):
        yield Finding(f"{key} is missing: {what} has no turns; name the column of the answer", key)
    yield from _soft_target_findings(config)
    given = {
        "critic_config": config.critic_config is not None,
        "reward_config": config.reward_config is not None,
        "teacher_config": None not in (config.teacher_config, config.preference_config),
        "data_config.rewards": bool(config.data_config.rewards),
        "spool_config.job": config.spool_config.job is not None,
    }
    for key in (key for key, is_given in given.items() if is_given):
        yield Finding(f"{key} is given: {_LEARNS} only; remove it", key, "given")


def _soft_target_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield keys of a teacher of rows that have no effect."""
    sft, teacher = config.sft_config, config.teacher_config
    if sft is None:
        return
    if teacher is not None and not teacher.candidates:
        need = (
            "must be 1 or more with sft_config: no responses are sampled that could have advantages"
        )
        yield broken("teacher_config.candidates", 0, need, 32)
    if teacher is None and sft.answer_coef != 1:
        need = "has no effect without a teacher_config: the loss is that of the answers alone"
        yield broken("sft_config.answer_coef", sft.answer_coef, need, 1.0)


_OF_POLICIES = tuple(form for form in get_args(PreferenceForm) if form not in REWARD_FORMS)
_LOSSES_OF = {
    "beta": _OF_POLICIES,
    "reference_free": _OF_POLICIES,
    "reference_file": _OF_POLICIES,
    "label_smoothing": ("sigmoid", "sigmoid_norm"),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
    "center_rewards_coefficient": ("bradley_terry",),
    "margin_column": ("bradley_terry",),
    "step_separator": ("steps",),
}
"""Keys that not all forms of the loss have, and those forms."""


def _preference_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield keys of preferences that contradict each other, or make their gradient inexact."""
    section = config.preference_config
    if section is None:
        return
    key = "preference_config"
    if config.sft_config is not None:
        yield Finding(f"{key} is given with sft_config: a run has one loss; remove one", key)
    loss = section.loss
    for name, losses in _LOSSES_OF.items():
        if loss not in losses:
            need = f"needs preference_config.loss={' or '.join(losses)}, found {loss}"
            yield from must_be_default(key, section, need, [name])
    yield from _compared_findings(config, section)
    if section.trains_rewards and config.actor_config.lora.r:
        need = (
            f"must be 0 with preference_config.loss={loss}: a reward model's head is trained whole"
        )
        yield broken("actor_config.lora.r", config.actor_config.lora.r, need, 0)
    if dropout := config.actor_config.lora.dropout:
        need = "must be 0 with preference_config: its slopes come from another forward pass"
        yield broken("actor_config.lora.dropout", dropout, need, 0.0)


def _compared_findings(config: RunConfig, section: PreferenceConfig) -> Iterator[Finding]:
    """Yield keys without what answers are compared with: a reference, or other rows."""
    if section.reference_free and (file := section.reference_file) is not None:
        need = "has no effect with preference_config.reference_free=true: no model is compared with"
        yield broken("preference_config.reference_file", file, need, None)
    if section.loss == "kto" and config.rl_config.mini_batch_size == 1:
        need = (
            "must be 2 or more with preference_config.loss=kto: the KL is estimated from the "
            "answers of other rows of an update"
        )
        yield broken("rl_config.mini_batch_size", 1, need, 2)


def _own(config: RunConfig) -> dict[str, Any]:
    section = config.preference_config
    return _OWN | ({} if section is None else {"n_samples_per_prompt": section.sequences_per_row})


def in_epochs(config: RunConfig, rows: int) -> RunConfig:
    """Return the configuration with the steps of its epochs, if those are fewer."""
    sft, training = config.sft_config, config.megatron_training
    if sft is None or sft.epochs is None:
        return config
    steps = min(training.train_iters, -(-sft.epochs * rows // training.global_batch_size))
    return replace(config, megatron_training=replace(training, train_iters=steps))


def _defaults() -> dict[str, Any]:
    return {each.name: each.default for each in fields(RLConfig)}
