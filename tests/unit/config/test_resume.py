"""Which keys may differ when a run is resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.resume import recorded_config, resume_findings
from mindrl.config.run import RunConfig

MODEL = Path("model")


OPTIONS = "rl_config.policy_loss_options"


def found(run_config: Callable[..., RunConfig], changes: dict[str, Any]) -> list[str]:
    base = {"rl_config.adv_estimator": "gae", "critic_config.weight_decay": 0.5}
    before = recorded_config(run_config(MODEL, base))
    now = run_config(MODEL, {**base, **changes})
    return [str(finding) for finding in resume_findings(before, now)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rl_config.actor_resource.num_npus": 4, "actor_config.tensor_model_parallel_size": 2},
        {"generate_config.infer_tensor_parallel_size": 1, "generate_config.rank_map": "default"},
        {"actor_config.micro_batch_size": 3, "rl_config.use_dynamic_bsz": True},
        {"generate_config.offload_train_param": False, "critic_config.offload_train_grad": False},
        {"megatron_training.save_interval": 7, "megatron_training.keep_every": 50},
        {"megatron_training.on_nonfinite": "stop"},
        {"rl_config.log_samples": 0, "rl_config.test_freq": 9},
        {"actor_config.recompute_granularity": "selective"},
        {"actor_config.context_parallel_algo": "megatron_cp_algo"},
        {"generate_config.router": "vllm-router"},
        {"rl_config.use_integrated_worker": False, "rl_config.rollout_resource.num_npus": 2},
    ],
)
def test_how_a_run_is_carried_out_may_change(
    changes: dict[str, Any], run_config: Callable[..., RunConfig]
) -> None:
    assert found(run_config, changes) == []


@pytest.mark.parametrize(
    ("before", "now", "key"),
    [
        ({}, {"reward_config.load": "judge"}, "reward_config"),
        ({"teacher_config.load": "teacher"}, {}, "teacher_config"),
        ({}, {"environment_config.tools": ["tools.py:add"]}, "environment_config"),
        ({}, {OPTIONS: {"tau": 9}}, OPTIONS),
        ({OPTIONS: {"tau": 9}}, {OPTIONS: {"other": 9}}, OPTIONS),
    ],
)
def test_a_section_or_a_mapping_that_one_run_alone_has_is_refused_unless_it_is_allowed(
    before: dict[str, Any],
    now: dict[str, Any],
    key: str,
    run_config: Callable[..., RunConfig],
) -> None:
    recorded = recorded_config(run_config(MODEL, before))
    (finding,) = resume_findings(recorded, run_config(MODEL, now))
    assert finding.field == key
    allowed = run_config(MODEL, {**now, "megatron_training.resume_allow": [key]})
    assert [*resume_findings(recorded, allowed)] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_config.lr", 3e-5),
        ("critic_config.lr", 3e-5),
        ("megatron_training.seed", 77),
        ("megatron_training.train_iters", 99),
        ("megatron_training.bf16", True),
        ("megatron_training.data_path", "other.jsonl"),
        ("rl_config.n_samples_per_prompt", 16),
        ("rl_config.clip_ratio", 0.1),
        ("rl_config.step_order", "asynchronous"),
        ("rl_config.max_staleness", 4),
        ("generate_config.sampling_config.temperature", 0.5),
        ("generate_config.dtype", "bfloat16"),
    ],
)
def test_what_a_run_computes_may_not_unless_it_is_allowed(
    key: str, value: Any, run_config: Callable[..., RunConfig]
) -> None:
    (said,) = found(run_config, {key: value})
    assert said.startswith(f"{key}=")
    assert "differs from the resumed run, which had " in said
    assert "megatron_training.resume_allow" in said
    assert found(run_config, {key: value, "megatron_training.resume_allow": (key,)}) == []
