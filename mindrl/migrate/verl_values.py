"""Types of the values that the import rules of verl calculate with. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindrl.errors import ConfigError
from mindrl.migrate.verl_keys import ACTOR, REF, ROLLOUT, SPLITS

_SIZES = frozenset({"data.train_batch_size", "data.gen_batch_size"})
_WHOLE = _SIZES | {
    *SPLITS,
    *(f"{role}.optim.lr_warmup_steps" for role in (ACTOR, "critic")),
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    *(f"{role}.log_prob_max_token_len_per_gpu" for role in (REF, ROLLOUT)),
    *(f"trainer.{name}" for name in ("nnodes", "n_gpus_per_node", "save_freq", "test_freq")),
    *(f"trainer.{name}" for name in ("total_epochs", "total_training_steps")),
    "trainer.max_actor_ckpt_to_keep",
    "trainer.critic_warmup",
    *(f"{ACTOR}.megatron.{name}_model_parallel_size" for name in ("tensor", "expert")),
    "data.train_max_samples",
    *(f"data.max_{name}_length" for name in ("prompt", "response")),
    f"{ROLLOUT}.max_model_len",
    "algorithm.filter_groups.max_num_gen_batches",
    *(f"actor_rollout_ref.model.{name}" for name in ("lora_rank", "lora.rank")),
    *(f"critic.model.{name}" for name in ("lora_rank", "lora.rank")),
}
_NUMBERS = frozenset(
    f"{role}.optim.{name}" for role in (ACTOR, "critic") for name in ("lr", "min_lr_ratio")
)
_PAIRS = frozenset({f"{ACTOR}.optim.betas", "critic.optim.betas"})
_LISTS = frozenset({"global_profiler.steps", f"{ACTOR}.profiler.ranks"})
_NAMES = frozenset({"trainer.logger", "actor_rollout_ref.model.target_modules"})
_TEXTS = frozenset(
    {
        *(f"{ROLLOUT}.name", f"{ROLLOUT}.dtype", "algorithm.adv_estimator", "trainer.device"),
        *(f"{ACTOR}.{name}" for name in ("policy_loss.loss_mode", "loss_agg_mode")),
        *(f"{ACTOR}.kl_loss_type", "algorithm.kl_penalty"),
        *(f"{ACTOR}.router_replay.mode", f"{ACTOR}.megatron.router_replay.mode"),
    }
)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _are_names(value: Any) -> bool:
    return all(isinstance(each, str) for each in (value if isinstance(value, list) else [value]))


_NEEDS: Sequence[tuple[frozenset[str], Callable[[Any], bool], str]] = (
    (_WHOLE, _is_whole, "a whole number"),
    (_SIZES, lambda value: bool(value >= 1), "at least 1"),
    (_NUMBERS, _is_number, "a number"),
    (_LISTS, _are_numbers, "a list of numbers"),
    (_PAIRS, lambda value: _are_numbers(value) and len(value) == 2, "a list of two numbers"),
    (_NAMES, _are_names, "a name or a list of names"),
    (_TEXTS, lambda value: isinstance(value, str), "text"),
)
"""Keys, the test that their values must pass after the tests above it, and what it needs."""


def check_values(theirs: Mapping[str, Any]) -> None:
    """Check the types of the values that the rules calculate with.

    Raises:
        ConfigError: Some values are invalid; all are listed, one per line.
    """
    needs = {key: _need(key, value) for key, value in theirs.items()}
    if wrong := [f"{key}={theirs[key]!r} must be {need}" for key, need in needs.items() if need]:
        raise ConfigError("\n".join(wrong))


def _need(key: str, value: Any) -> str:
    """Return a description of the value that is needed; empty if the value is valid."""
    tests = ((is_valid, need) for keys, is_valid, need in _NEEDS if key in keys)
    return next((need for is_valid, need in tests if not is_valid(value)), "")
