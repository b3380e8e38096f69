"""What the parts of an algorithm need of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings

MakeConfig = Callable[..., RunConfig]
BATCH, MINI = "megatron_training.global_batch_size", "rl_config.mini_batch_size"
GAE: dict[str, Any] = {"rl_config.adv_estimator": "gae", "critic_config.lr": 1e-5}


def found(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [each.field for each in findings(run_config(Path("model"), overrides))]


def test_an_update_finds_the_old_log_probs_where_nothing_needs_them_sooner_or_later(
    run_config: MakeConfig,
) -> None:
    ask = "rl_config.old_log_probs"
    several = {BATCH: 8, MINI: 4}
    assert run_config(Path("model"), several).old_log_probs == "recompute"
    assert run_config(Path("model"), {BATCH: 8, MINI: 8}).old_log_probs == "from_update"
    assert found(run_config, several | {ask: "from_update"}) == [ask]
    early = {BATCH: 8, MINI: 8, "rl_config.init_kl_coef": 0.1, "rl_config.use_kl_in_reward": True}
    assert found(run_config, early | {ask: "from_update"}) == [ask]
    assert found(run_config, early | {ask: "from_rollout"}) == []
    warmup = GAE | {"rl_config.critic_warmup": 1, ask: "from_rollout"}
    assert found(run_config, warmup) == [ask]


FIX = "rl_config.rollout_correction"
DTYPE = "generate_config.dtype"


def test_tokens_are_weighed_where_the_rollout_is_not_float32(run_config: MakeConfig) -> None:
    def level(overrides: dict[str, Any]) -> str | None:
        options = run_config(Path("model"), overrides).rollout_correction
        return None if options is None else options.level

    assert level({DTYPE: "float32"}) is None
    assert level({DTYPE: "bfloat16"}) == "token"
    assert level({DTYPE: "bfloat16", f"{FIX}.level": "off"}) is None
    assert level({DTYPE: "float32", f"{FIX}.level": "sequence"}) == "sequence"
    assert level({DTYPE: "float32", f"{FIX}.reject_above": 1.1}) == "off"
    assert level({DTYPE: "bfloat16", "rl_config.old_log_probs": "from_rollout"}) is None
    partial = {DTYPE: "float32", "rl_config.partial_rollout": True}
    assert level(partial) == "token"
    assert level(partial | {"rl_config.max_staleness": 0}) is None


def test_a_correction_that_means_nothing_is_refused(run_config: MakeConfig) -> None:
    one = {"rl_config.old_log_probs": "from_rollout", f"{FIX}.level": "token"}
    assert found(run_config, one) == [f"{FIX}.level"]
    assert found(run_config, {f"{FIX}.min_weight": 0.5}) == [f"{FIX}.min_weight"]
    assert found(run_config, {f"{FIX}.min_weight": 3, f"{FIX}.beyond": "mask"}) == [
        f"{FIX}.min_weight"
    ]


def test_a_reference_that_is_reset_is_there_and_laid_out_as_the_actor(
    run_config: MakeConfig,
) -> None:
    interval = {"rl_config.ref_update_interval": 100}
    field = "rl_config.ref_update_interval"
    assert found(run_config, interval) == [field]
    there = interval | {"rl_config.init_kl_coef": 0.1, "rl_config.actor_resource.num_npus": 2}
    config = run_config(Path("model"), there)
    assert (found(run_config, there), config.changing_roles) == ([], ("actor", "ref"))
    assert [step for step in range(1, 303) if config.rl_config.resets_reference(step)] == [
        101,
        201,
        301,
    ]
    own = there | {"ref_config.tensor_model_parallel_size": 2}
    assert found(run_config, own) == [field]


def test_routes_of_the_old_log_probs_need_their_pass(run_config: MakeConfig) -> None:
    key, ask = "actor_config.router_replay", "rl_config.old_log_probs"
    assert found(run_config, {key: "R2", ask: "from_update"}) == [key]
    assert found(run_config, {key: "R2", ask: "from_rollout"}) == [key]
    assert found(run_config, {key: "R2", ask: "recompute"}) == []
    assert found(run_config, {key: "R2", BATCH: 8, MINI: 4}) == []


def test_routes_of_the_engine_need_one_of_the_run_without_stages_or_graphs(
    run_config: MakeConfig,
) -> None:
    key, generate = "actor_config.router_replay", "generate_config"
    assert found(run_config, {key: "R3"}) == []
    old = {"rl_config.partial_rollout": True, "rl_config.max_staleness": 1}
    apart = {"rl_config.use_integrated_worker": False, "rl_config.rollout_resource.num_npus": 1}
    assert found(run_config, {key: "R3"} | old) == found(run_config, {key: "R3"} | apart) == []
    refused: list[dict[str, Any]] = [
        apart | {f"{generate}.servers": ["http://10.0.0.1:8000"]},
        {
            "rl_config.actor_resource.num_npus": 2,
            f"{generate}.infer_pipeline_parallel_size": 2,
            BATCH: 8,
            MINI: 8,
        },
        {f"{generate}.enforce_eager": False},
        {"spool_config.job": "train", "spool_config.folder": "spool"},
    ]
    for keys in refused:
        assert key in found(run_config, keys | {key: "R3"}), keys
